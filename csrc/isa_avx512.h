// Sixty-four floats in four AVX-512 registers; the same names as isa_portable.h, and the same results bit for bit.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace slimgrad {

struct Avx512 {
  struct Floats {
    __m512 v[4];
  };

  static Floats load(const float* p) {
    Floats r;
    for (int i = 0; i < 4; ++i) r.v[i] = _mm512_loadu_ps(p + 16 * i);
    return r;
  }
  static __m256i load16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store16(uint16_t* p, __m256i h) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h); }
  static Floats load_float16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 4; ++i) r.v[i] = _mm512_cvtph_ps(load16(p + 16 * i));
    return r;
  }
  static Floats load_bfloat16(const uint16_t* p) {
    Floats r;
    for (int i = 0; i < 4; ++i)
      r.v[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(p + 16 * i)), 16));
    return r;
  }
  static void store(float* p, const Floats& a) {
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(p + 16 * i, a.v[i]);
  }
  static void store_float16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 4; ++i) store16(p + 16 * i, _mm512_cvtps_ph(a.v[i], _MM_FROUND_TO_NEAREST_INT));
  }
  static __m512i round_to_bfloat16(__m512 a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_srli_epi32(rounded, 16);
  }
  static void store_bfloat16(uint16_t* p, const Floats& a) {
    const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // packing works within 16 bytes
    for (int i = 0; i < 4; i += 2) {
      const __m512i packed = _mm512_packus_epi32(round_to_bfloat16(a.v[i]), round_to_bfloat16(a.v[i + 1]));
      _mm512_storeu_si512(p + 16 * i, _mm512_permutexvar_epi64(in_order, packed));
    }
  }
  static Floats all(float x) {
    Floats r;
    for (auto& v : r.v) v = _mm512_set1_ps(x);
    return r;
  }
  static void sub(Floats& a, const Floats& b) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_sub_ps(a.v[i], b.v[i]);
  }
  static void add(Floats& a, const Floats& b) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_add_ps(a.v[i], b.v[i]);
  }
  static void mul(Floats& a, const Floats& b) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_mul_ps(a.v[i], b.v[i]);
  }
  static void abs(Floats& a) {
    for (auto& v : a.v) v = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
  }
  static void clamp(Floats& a, float limit) {
    for (auto& v : a.v) v = _mm512_max_ps(_mm512_min_ps(v, _mm512_set1_ps(limit)), _mm512_set1_ps(-limit));
  }
  static uint64_t joined(__mmask16 a, __mmask16 b, __mmask16 c, __mmask16 d) {
    return static_cast<uint64_t>(a) | static_cast<uint64_t>(b) << 16 | static_cast<uint64_t>(c) << 32 |
           static_cast<uint64_t>(d) << 48;
  }
  static uint64_t above(const Floats& a, float limit) {
    const __m512 t = _mm512_set1_ps(limit);
    return joined(_mm512_cmp_ps_mask(a.v[0], t, _CMP_NLE_UQ), _mm512_cmp_ps_mask(a.v[1], t, _CMP_NLE_UQ),
                  _mm512_cmp_ps_mask(a.v[2], t, _CMP_NLE_UQ), _mm512_cmp_ps_mask(a.v[3], t, _CMP_NLE_UQ));
  }
  // as a test, which another port executes than the four moves to general registers that follow
  static __mmask16 sign16(__m512 a) {
    return _mm512_test_epi32_mask(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN));
  }
  static uint64_t signs(const Floats& a) { return joined(sign16(a.v[0]), sign16(a.v[1]), sign16(a.v[2]), sign16(a.v[3])); }
  static bool any_sign(const Floats& a) {
    const __m512i low = _mm512_or_si512(_mm512_castps_si512(a.v[0]), _mm512_castps_si512(a.v[1]));
    const __m512i high = _mm512_or_si512(_mm512_castps_si512(a.v[2]), _mm512_castps_si512(a.v[3]));
    return _mm512_movepi32_mask(_mm512_or_si512(low, high)) != 0;
  }
  static void truncate(Floats& a) {
    for (auto& v : a.v) v = _mm512_castsi512_ps(_mm512_cvttps_epi32(v));
  }
  static uint64_t integer_bit(const Floats& a, int bit) {
    const __m512i t = _mm512_set1_epi32(1 << bit);
    __mmask16 m[4];
    for (int i = 0; i < 4; ++i) m[i] = _mm512_test_epi32_mask(_mm512_castps_si512(a.v[i]), t);
    return joined(m[0], m[1], m[2], m[3]);
  }
  static __mmask16 part(uint64_t mask, int i) { return static_cast<__mmask16>(mask >> 16 * i); }
  static void blend(Floats& a, float x, uint64_t mask) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_mask_mov_ps(a.v[i], part(mask, i), _mm512_set1_ps(x));
  }
  static void add_where(Floats& a, float x, uint64_t mask) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_mask_add_ps(a.v[i], part(mask, i), a.v[i], _mm512_set1_ps(x));
  }
  static void flip(Floats& a, uint64_t mask) {
    for (int i = 0; i < 4; ++i) {
      const __m512i bits = _mm512_castps_si512(a.v[i]);
      const __m512i flipped = _mm512_mask_xor_epi32(bits, part(mask, i), bits, _mm512_set1_epi32(INT32_MIN));
      a.v[i] = _mm512_castsi512_ps(flipped);
    }
  }
  static void keep_where(Floats& a, uint64_t mask) {
    for (int i = 0; i < 4; ++i) a.v[i] = _mm512_maskz_mov_ps(part(mask, i), a.v[i]);
  }

  // Sixty-four numbers as bytes, from their binary digits.
  static __m512i indices(const uint64_t* digits, int n_digits) {
    __m512i index = _mm512_maskz_set1_epi8(digits[0], 1);
    index = _mm512_mask_add_epi8(index, digits[1], index, _mm512_set1_epi8(2));
    if (n_digits > 2) index = _mm512_mask_add_epi8(index, digits[2], index, _mm512_set1_epi8(4));
    if (n_digits > 3) index = _mm512_mask_add_epi8(index, digits[3], index, _mm512_set1_epi8(8));
    return index;
  }
  // Note [Indices without widening]
  // A permutation reads only the lowest bits of each lane's index. So the bytes are not widened, vector by vector, but
  // ordered once such that byte k of lane i belongs to value i of vector k, and then shifted.
  static Floats lookup(const uint64_t* digits, int n_digits, const float* table) {
    const __m512i across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i within = _mm512_setr4_epi32(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703);  // 0, 4, 8, 12, 1 ...
    const __m512 values = _mm512_loadu_ps(table);
    const __m512i index = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(across, indices(digits, n_digits)), within);
    Floats r;
    r.v[0] = _mm512_permutexvar_ps(index, values);
    r.v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 8), values);
    r.v[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 16), values);
    r.v[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 24), values);
    return r;
  }

  struct Halves {
    __m512i v[2];
  };
  static Halves load_halves(const uint16_t* p) {
    return {{_mm512_loadu_si512(p), _mm512_loadu_si512(p + 32)}};
  }
  static uint64_t joined(__mmask32 a, __mmask32 b) { return static_cast<uint64_t>(a) | static_cast<uint64_t>(b) << 32; }
  static uint64_t signs(const Halves& a) { return joined(_mm512_movepi16_mask(a.v[0]), _mm512_movepi16_mask(a.v[1])); }
  static void abs(Halves& a) {
    for (auto& v : a.v) v = _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
  }
  static uint64_t above(const Halves& a, uint16_t limit) {
    const __m512i t = _mm512_set1_epi16(static_cast<int16_t>(limit));
    return joined(_mm512_cmpgt_epi16_mask(a.v[0], t), _mm512_cmpgt_epi16_mask(a.v[1], t));
  }
  // The sign is a fifth digit: the upper half of the table is the lower half with the sign set.
  static void store_lookup(uint16_t* out, const uint64_t* digits, uint64_t sign, const uint16_t* table) {
    const __m256i plus = load16(table), minus = _mm256_or_si256(plus, _mm256_set1_epi16(INT16_MIN));
    const __m512i values = _mm512_inserti64x4(_mm512_castsi256_si512(plus), minus, 1);
    __m512i index = indices(digits, 4);
    index = _mm512_mask_add_epi8(index, sign, index, _mm512_set1_epi8(16));
    const __m512i across = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // Note [Indices without widening]
    const __m512i within = _mm512_setr4_epi32(0x09010800, 0x0b030a02, 0x0d050c04, 0x0f070e06);  // 0, 8, 1, 9 ...
    index = _mm512_shuffle_epi8(_mm512_permutexvar_epi64(across, index), within);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, values));
    _mm512_storeu_si512(out + 32, _mm512_permutexvar_epi16(_mm512_srli_epi16(index, 8), values));
  }

  static uint64_t pext(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t pdep(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace slimgrad
