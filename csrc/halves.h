// float16 and bfloat16 to float32 and back, by integer arithmetic: the portable kernels and every tail use these.
#pragma once

#include <cstdint>
#include <cstring>

namespace slimgrad {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float bfloat16_to_float(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

// Round to nearest even; x is finite.
inline uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return float_of(sign | bits_of(tiny));
}

// Round to nearest even; |x| <= 65504.
inline uint16_t float_to_float16(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal; adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

// The pattern of the largest float16 that is at most x (x >= 0).
inline uint16_t float16_at_most(float x) {
  if (x >= 65504.0f) return 0x7bff;
  const uint16_t nearest = float_to_float16(x);
  return float16_to_float(nearest) > x ? static_cast<uint16_t>(nearest - 1) : nearest;
}

}  // namespace slimgrad
