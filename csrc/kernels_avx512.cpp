#include <cmath>
#include <cstring>

#include "bitstream.h"
#include "isa_avx512.h"
#include "kernels.h"

namespace slimgrad {
namespace {

#include "nested.inc"
#include "moments.inc"

}  // namespace

extern const Kernels avx512_kernels;
const Kernels avx512_kernels = {"avx512", {encode_any<Avx512>, decode_any<Avx512>}, moments_any<Avx512>};

}  // namespace slimgrad
