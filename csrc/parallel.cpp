#include "parallel.h"

#include <cfenv>
#include <cstring>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace slimgrad {
namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

std::atomic<GompParallel> pool{nullptr};
std::atomic<bool> is_forked_child{false};

#if !defined(_WIN32)
// The pool's threads do not exist in a forked child; entering the pool there would wait for them for ever.
const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked_child.store(true); });
#endif

}  // namespace

void use_pool(void* gomp_parallel) {
  GompParallel entry;
  static_assert(sizeof entry == sizeof gomp_parallel);
  std::memcpy(&entry, &gomp_parallel, sizeof entry);
  pool.store(entry);
}

void run_parallel(int threads, void (*work)(void*), void* data) {
  if (threads <= 1 || is_forked_child.load()) return work(data);
  if (GompParallel entry = pool.load()) return entry(work, data, static_cast<unsigned>(threads), 0);
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, data);
  work(data);
  for (auto& other : others) other.join();
}

DefaultFloats::DefaultFloats() {
  static_assert(sizeof(std::fenv_t) <= sizeof saved_);
  std::fegetenv(reinterpret_cast<std::fenv_t*>(saved_));
  std::fesetenv(FE_DFL_ENV);
}

DefaultFloats::~DefaultFloats() { std::fesetenv(reinterpret_cast<std::fenv_t*>(saved_)); }

}  // namespace slimgrad
