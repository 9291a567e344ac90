#include <cmath>
#include <cstring>
#include <type_traits>

#include "bitstream.h"
#include "halves.h"
#include "isa_avx512.h"
#include "kernels.h"
#include "words_avx512.h"

namespace slimgrad {
namespace {

#include "groups.inc"
#include "plane_groups.inc"
#include "plane_differences.inc"

#include "nested_encode.inc"
#include "nested_decode.inc"
#include "moments.inc"
#include "sparse.inc"
#include "bits.inc"
#include "window.inc"

}  // namespace

extern const Kernels avx512_kernels;
const Kernels avx512_kernels = {"avx512", {encode_any<Avx512>, decode_any<Avx512>}, moments_any<Avx512>, lossless_kernels<Avx512Words>()};

}  // namespace slimgrad
