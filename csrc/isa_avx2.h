// Sixty-four floats in eight AVX2 registers; the same names as isa_portable.h, and the same results bit for bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace slimgrad {

struct Avx2 {
  struct Floats {
    __m256 v[8];
  };

  static Floats load(const float* p) {
    Floats r;
    for (int i = 0; i < 8; ++i) r.v[i] = _mm256_loadu_ps(p + 8 * i);
    return r;
  }
  static __m128i load8(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Floats load_float16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 8; ++i) r.v[i] = _mm256_cvtph_ps(load8(p + 8 * i));
    return r;
  }
  static Floats load_bfloat16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 8; ++i)
      r.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load8(p + 8 * i)), 16));
    return r;
  }
  static void store(float* p, const Floats& a) {
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(p + 8 * i, a.v[i]);
  }
  static void store_float16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 8; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8 * i), _mm256_cvtps_ph(a.v[i], _MM_FROUND_TO_NEAREST_INT));
  }
  static __m256i round_to_bfloat16(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_srli_epi32(rounded, 16);
  }
  static void store_bfloat16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 8; i += 2) {
      const __m256i packed = _mm256_packus_epi32(round_to_bfloat16(a.v[i]), round_to_bfloat16(a.v[i + 1]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
  }
  static Floats all(float x) {
    Floats r;
    for (auto& v : r.v) v = _mm256_set1_ps(x);
    return r;
  }
  static void sub(Floats& a, const Floats& b) {
    for (int i = 0; i < 8; ++i) a.v[i] = _mm256_sub_ps(a.v[i], b.v[i]);
  }
  static void add(Floats& a, const Floats& b) {
    for (int i = 0; i < 8; ++i) a.v[i] = _mm256_add_ps(a.v[i], b.v[i]);
  }
  static void mul(Floats& a, const Floats& b) {
    for (int i = 0; i < 8; ++i) a.v[i] = _mm256_mul_ps(a.v[i], b.v[i]);
  }
  static void abs(Floats& a) {
    for (auto& v : a.v) v = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
  }
  static void clamp(Floats& a, float limit) {
    for (auto& v : a.v) v = _mm256_max_ps(_mm256_min_ps(v, _mm256_set1_ps(limit)), _mm256_set1_ps(-limit));
  }

  // Eight vectors of all-ones or zero lanes to 64 bits: narrow to bytes (which shuffles 4-byte pieces), undo, move mask.
  static uint64_t bits_of_lanes(const __m256i* lanes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    uint64_t mask = 0;
    for (int half = 0; half < 2; ++half, lanes += 4) {
      const __m256i bytes =
          _mm256_packs_epi16(_mm256_packs_epi32(lanes[0], lanes[1]), _mm256_packs_epi32(lanes[2], lanes[3]));
      const uint32_t bits = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(bytes, order)));
      mask |= static_cast<uint64_t>(bits) << 32 * half;
    }
    return mask;
  }
  static uint64_t above(const Floats& a, float limit) {
    const __m256 t = _mm256_set1_ps(limit);
    __m256i lanes[8];
    for (int i = 0; i < 8; ++i) lanes[i] = _mm256_castps_si256(_mm256_cmp_ps(a.v[i], t, _CMP_NLE_UQ));
    return bits_of_lanes(lanes);
  }
  static uint64_t signs(const Floats& a) {
    uint64_t mask = 0;
    for (int i = 0; i < 8; ++i) mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(a.v[i]))) << 8 * i;
    return mask;
  }
  static bool any_sign(const Floats& a) {
    const __m256 low = _mm256_or_ps(_mm256_or_ps(a.v[0], a.v[1]), _mm256_or_ps(a.v[2], a.v[3]));
    const __m256 high = _mm256_or_ps(_mm256_or_ps(a.v[4], a.v[5]), _mm256_or_ps(a.v[6], a.v[7]));
    return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
  }
  static void truncate(Floats& a) {
    for (auto& v : a.v) v = _mm256_castsi256_ps(_mm256_cvttps_epi32(v));
  }
  static uint64_t integer_bit(const Floats& a, int bit) {
    uint64_t mask = 0;
    for (int i = 0; i < 8; ++i) {
      const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(a.v[i]), 31 - bit);
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(shifted)))) << 8 * i;
    }
    return mask;
  }

  // Lane i of part k has bit 8k + i of the mask in its sign bit.
  static __m256i lanes_of_bits(uint64_t mask, int k) {
    const __m256i word = _mm256_set1_epi32(static_cast<int32_t>(mask >> (k / 4 * 32)));
    const __m256i shift = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    return _mm256_sllv_epi32(word, _mm256_sub_epi32(shift, _mm256_set1_epi32(k % 4 * 8)));
  }
  static void blend(Floats& a, float x, uint64_t mask) {
    for (int k = 0; k < 8; ++k)
      a.v[k] = _mm256_blendv_ps(a.v[k], _mm256_set1_ps(x), _mm256_castsi256_ps(lanes_of_bits(mask, k)));
  }
  static void add_where(Floats& a, float x, uint64_t mask) {
    for (int k = 0; k < 8; ++k) {
      const __m256i lanes = _mm256_srai_epi32(lanes_of_bits(mask, k), 31);
      a.v[k] = _mm256_add_ps(a.v[k], _mm256_and_ps(_mm256_set1_ps(x), _mm256_castsi256_ps(lanes)));
    }
  }
  static void flip(Floats& a, uint64_t mask) {
    for (int k = 0; k < 8; ++k) {
      const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(lanes_of_bits(mask, k)), _mm256_set1_ps(-0.0f));
      a.v[k] = _mm256_xor_ps(a.v[k], sign);
    }
  }
  static void keep_where(Floats& a, uint64_t mask) {
    for (int k = 0; k < 8; ++k) {
      const __m256i lanes = _mm256_srai_epi32(lanes_of_bits(mask, k), 31);
      a.v[k] = _mm256_and_ps(a.v[k], _mm256_castsi256_ps(lanes));
    }
  }

  // Bytes of all ones where the bit is set, in order.
  static __m256i bytes_of_bits(uint32_t mask) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(mask)), spread);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  }
  static __m256i indices(const uint64_t* digits, int n_digits, int half) {
    __m256i index = _mm256_setzero_si256();
    for (int d = 0; d < n_digits; ++d) {
      const __m256i set = bytes_of_bits(static_cast<uint32_t>(digits[d] >> 32 * half));
      index = _mm256_or_si256(index, _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << d))));
    }
    return index;
  }
  static Floats lookup(const uint64_t* digits, int n_digits, const float* table) {
    const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
    alignas(32) uint8_t index[64];
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes = n_digits <= 2   ? indices(digits, 2, half)
                            : n_digits == 3 ? indices(digits, 3, half)
                                            : indices(digits, 4, half);
      _mm256_store_si256(reinterpret_cast<__m256i*>(index + 32 * half), bytes);
    }
    Floats r;
    for (int i = 0; i < 8; ++i) {
      const __m256i lanes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(index + 8 * i)));
      r.v[i] = _mm256_permutevar8x32_ps(low, lanes);
      if (n_digits > 3)
        r.v[i] = _mm256_blendv_ps(r.v[i], _mm256_permutevar8x32_ps(high, lanes),
                                  _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28)));
    }
    return r;
  }

  struct Halves {
    __m256i v[4];
  };
  static Halves load_halves(const uint16_t* p) {
    Halves r;
    for (int i = 0; i < 4; ++i) r.v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16 * i));
    return r;
  }
  // Four vectors of 16-bit lanes, of which the sign bit counts, to 64 bits.
  static uint64_t bits_of_halves(const __m256i* lanes) {
    const __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi16(lanes[0], lanes[1]), 0xd8);
    const __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi16(lanes[2], lanes[3]), 0xd8);
    return static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32 |
           static_cast<uint32_t>(_mm256_movemask_epi8(low));
  }
  static uint64_t signs(const Halves& a) { return bits_of_halves(a.v); }
  static void abs(Halves& a) {
    for (auto& v : a.v) v = _mm256_and_si256(v, _mm256_set1_epi16(0x7fff));
  }
  static uint64_t above(const Halves& a, uint16_t limit) {
    __m256i lanes[4];
    for (int i = 0; i < 4; ++i) lanes[i] = _mm256_cmpgt_epi16(a.v[i], _mm256_set1_epi16(static_cast<int16_t>(limit)));
    return bits_of_halves(lanes);
  }
  static __m256i twice(__m128i a) { return _mm256_broadcastsi128_si256(a); }
  static void store_lookup(uint16_t* out, const uint64_t* digits, uint64_t sign, const uint16_t* table) {
    const __m128i first = load8(table), second = load8(table + 8), byte = _mm_set1_epi16(255);
    const __m256i low = twice(_mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte)));
    const __m256i high = twice(_mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8)));
    for (int half = 0; half < 2; ++half) {
      const __m256i index = indices(digits, 4, half);
      const __m256i minus = _mm256_and_si256(bytes_of_bits(static_cast<uint32_t>(sign >> 32 * half)), _mm256_set1_epi8(-128));
      const __m256i a = _mm256_shuffle_epi8(low, index), b = _mm256_or_si256(_mm256_shuffle_epi8(high, index), minus);
      const __m256i even = _mm256_unpacklo_epi8(a, b), odd = _mm256_unpackhi_epi8(a, b);
      auto* to = reinterpret_cast<__m256i*>(out + 32 * half);
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }

  static uint64_t pext(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t pdep(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace slimgrad
