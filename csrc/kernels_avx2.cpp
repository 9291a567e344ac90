#include <cmath>
#include <cstring>
#include <type_traits>

#include "bitstream.h"
#include "halves.h"
#include "isa_avx2.h"
#include "kernels.h"
#include "words_avx2.h"

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

extern const Kernels avx2_kernels;
const Kernels avx2_kernels = {"avx2", {encode_any<Avx2>, decode_any<Avx2>}, moments_any<Avx2>, lossless_kernels<Avx2Words>()};

}  // namespace slimgrad
