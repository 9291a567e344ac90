// Sixty-four floats and the operations the kernels need on them, in plain C++. The other isa_*.h offer the same names.
#pragma once

#include <cmath>
#include <cstdint>

#include "halves.h"

namespace slimgrad {

struct Portable {
  struct Floats {
    float v[64];
  };

  static Floats load(const float* p) {
    Floats r;
    for (int i = 0; i < 64; ++i) r.v[i] = p[i];
    return r;
  }
  static Floats load_float16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 64; ++i) r.v[i] = float16_to_float(p[i]);
    return r;
  }
  static Floats load_bfloat16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 64; ++i) r.v[i] = bfloat16_to_float(p[i]);
    return r;
  }
  static void store(float* p, const Floats& a) {
    for (int i = 0; i < 64; ++i) p[i] = a.v[i];
  }
  static void store_float16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 64; ++i) p[i] = float_to_float16(a.v[i]);
  }
  static void store_bfloat16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 64; ++i) p[i] = float_to_bfloat16(a.v[i]);
  }
  static Floats all(float x) {
    Floats r;
    for (int i = 0; i < 64; ++i) r.v[i] = x;
    return r;
  }
  static void sub(Floats& a, const Floats& b) {
    for (int i = 0; i < 64; ++i) a.v[i] -= b.v[i];
  }
  static void add(Floats& a, const Floats& b) {
    for (int i = 0; i < 64; ++i) a.v[i] += b.v[i];
  }
  static void mul(Floats& a, const Floats& b) {
    for (int i = 0; i < 64; ++i) a.v[i] *= b.v[i];
  }
  static void abs(Floats& a) {
    for (int i = 0; i < 64; ++i) a.v[i] = std::fabs(a.v[i]);
  }
  // Clamp to [-limit, limit]; values are not NaN.
  static void clamp(Floats& a, float limit) {
    for (int i = 0; i < 64; ++i) a.v[i] = a.v[i] > limit ? limit : a.v[i] < -limit ? -limit : a.v[i];
  }
  // Bit i: not a[i] <= limit. NaN counts as above.
  static uint64_t above(const Floats& a, float limit) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(!(a.v[i] <= limit)) << i;
    return mask;
  }
  static uint64_t signs(const Floats& a) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(bits_of(a.v[i]) >> 31) << i;
    return mask;
  }
  static bool any_sign(const Floats& a) {
    uint32_t any = 0;
    for (int i = 0; i < 64; ++i) any |= bits_of(a.v[i]);
    return any >> 31;
  }
  // Truncate to integers (0 <= a < 2^24) and give bit `bit` of each.
  static void truncate(Floats& a) {
    for (int i = 0; i < 64; ++i) a.v[i] = float_of(static_cast<uint32_t>(static_cast<int32_t>(a.v[i])));
  }
  static uint64_t integer_bit(const Floats& a, int bit) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(bits_of(a.v[i]) >> bit & 1) << i;
    return mask;
  }
  // Where the mask is set: replace by x, add x, or flip the sign.
  static void blend(Floats& a, float x, uint64_t mask) {
    for (int i = 0; i < 64; ++i) a.v[i] = mask >> i & 1 ? x : a.v[i];
  }
  static void add_where(Floats& a, float x, uint64_t mask) {
    for (int i = 0; i < 64; ++i) a.v[i] += mask >> i & 1 ? x : 0.0f;
  }
  static void flip(Floats& a, uint64_t mask) {
    for (int i = 0; i < 64; ++i) a.v[i] = float_of(bits_of(a.v[i]) ^ static_cast<uint32_t>(mask >> i & 1) << 31);
  }
  static void keep_where(Floats& a, uint64_t mask) {
    for (int i = 0; i < 64; ++i) a.v[i] = mask >> i & 1 ? a.v[i] : 0.0f;
  }
  // y[i] = table[k] where bit i of `digits` gives the binary digits of k, least significant first; 16 entries.
  static Floats lookup(const uint64_t* digits, int, const float* table) {
    Floats r;
    for (int i = 0; i < 64; ++i) r.v[i] = table[index_at(digits, i)];
    return r;
  }
  static int index_at(const uint64_t* digits, int i) {
    return static_cast<int>((digits[0] >> i & 1) | (digits[1] >> i & 1) << 1 | (digits[2] >> i & 1) << 2 |
                            (digits[3] >> i & 1) << 3);
  }

  // Sixty-four 16-bit floats as bit patterns: without the sign, their order is that of integers.
  struct Halves {
    uint16_t v[64];
  };
  static Halves load_halves(const uint16_t* p) {
    Halves r;
    for (int i = 0; i < 64; ++i) r.v[i] = p[i];
    return r;
  }
  static uint64_t signs(const Halves& a) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(a.v[i] >> 15) << i;
    return mask;
  }
  static void abs(Halves& a) {
    for (int i = 0; i < 64; ++i) a.v[i] &= 0x7fff;
  }
  static uint64_t above(const Halves& a, uint16_t limit) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(a.v[i] > limit) << i;
    return mask;
  }
  static void store_lookup(uint16_t* out, const uint64_t* digits, uint64_t sign, const uint16_t* table) {
    for (int i = 0; i < 64; ++i)
      out[i] = static_cast<uint16_t>(table[index_at(digits, i)] | (sign >> i & 1) << 15);
  }

  // Gather the bits of x at the positions set in mask to the low end, and back.
  static uint64_t pext(uint64_t x, uint64_t mask) {
    uint64_t r = 0;
    for (int at = 0; mask; mask &= mask - 1, ++at) r |= (x >> __builtin_ctzll(mask) & 1) << at;
    return r;
  }
  static uint64_t pdep(uint64_t x, uint64_t mask) {
    uint64_t r = 0;
    for (; mask; mask &= mask - 1, x >>= 1) r |= (x & 1) << __builtin_ctzll(mask);
    return r;
  }
};

}  // namespace slimgrad
