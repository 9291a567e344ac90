// The kernels of one instruction set, as a table. Each kernels_*.cpp is compiled with that set's flags and fills one.
#pragma once

#include "lossless.h"
#include "nested.h"

#if defined(__x86_64__) || defined(_M_X64)
#define SLIMGRAD_X86
#endif

namespace slimgrad {

struct Kernels {
  const char* name;
  NestedKernels nested;
  void (*moments)(const void* x, int64_t count, int dtype, double* sums);  // adds count, non-zeros, sum, squares
  LosslessKernels lossless;
};

extern const Kernels portable_kernels;
#if defined(SLIMGRAD_X86)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

// The table in use: the best this machine has, or what SLIMGRAD_ISA or slimgrad_use_isa named.
const Kernels& kernels();

}  // namespace slimgrad
