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
  static uint64_t pext(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t pdep(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace slimgrad
