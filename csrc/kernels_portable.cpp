#include <cmath>
#include <cstring>
#include <type_traits>

#include "bitstream.h"
#include "halves.h"
#include "isa_portable.h"
#include "kernels.h"
#include "words_portable.h"

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

extern const Kernels portable_kernels;
const Kernels portable_kernels = {"portable", {encode_any<Portable>, decode_any<Portable>}, moments_any<Portable>, lossless_kernels<PortableWords>()};

}  // namespace slimgrad
