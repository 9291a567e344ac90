// Choosing the instruction set, once, and the functions of the C interface that are about the choice.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "parallel.h"

namespace slimgrad {
namespace {

const Kernels* find(const char* name) {
  const bool any = std::strcmp(name, "") == 0;
#if defined(SLIMGRAD_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
#if defined(SLIMGRAD_EMULATED_AVX512)  // tests/csrc: the AVX-512 kernels compiled to AVX2
  const bool has_avx512 = has_avx2;
#else
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  if (has_avx512 && (any || std::strcmp(name, "avx512") == 0)) return &avx512_kernels;
  if (has_avx2 && (any || std::strcmp(name, "avx2") == 0)) return &avx2_kernels;
#endif
  if (any || std::strcmp(name, "portable") == 0) return &portable_kernels;
  return nullptr;
}

const Kernels* find_at_load() {
  const char* wish = std::getenv("SLIMGRAD_ISA");
  const Kernels* found = wish ? find(wish) : nullptr;
  return found ? found : find("");
}

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> table{find_at_load()};
  return table;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

}  // namespace slimgrad

int slimgrad_abi(void) { return SLIMGRAD_ABI; }

const char* slimgrad_isa(void) { return slimgrad::kernels().name; }

int slimgrad_use_isa(const char* name) {
  const slimgrad::Kernels* found = slimgrad::find(name);
  if (!found) return SLIMGRAD_BAD_ARGUMENT;
  slimgrad::chosen().store(found);
  return 0;
}

void slimgrad_use_pool(void* gomp_parallel) { slimgrad::use_pool(gomp_parallel); }
