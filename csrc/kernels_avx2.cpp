#include <cmath>
#include <cstring>

#include "bitstream.h"
#include "isa_avx2.h"
#include "kernels.h"

namespace slimgrad {
namespace {

#include "nested.inc"
#include "moments.inc"

}  // namespace

extern const Kernels avx2_kernels;
const Kernels avx2_kernels = {"avx2", {encode_any<Avx2>, decode_any<Avx2>}, moments_any<Avx2>};

}  // namespace slimgrad
