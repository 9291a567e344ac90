#include <cmath>
#include <cstring>

#include "bitstream.h"
#include "isa_portable.h"
#include "kernels.h"

namespace slimgrad {
namespace {

#include "nested.inc"
#include "moments.inc"

}  // namespace

extern const Kernels portable_kernels;
const Kernels portable_kernels = {"portable", {encode_any<Portable>, decode_any<Portable>}, moments_any<Portable>};

}  // namespace slimgrad
