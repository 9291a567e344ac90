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
  static void store_bfloat16(uint16_t* p, const Floats& a) {
    for (int i = 0; i < 4; ++i) {
      const __m512i bits = _mm512_castps_si512(a.v[i]);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
      store16(p + 16 * i, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
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
  static __mmask16 sign16(__m512 a) { return _mm512_movepi32_mask(_mm512_castps_si512(a)); }
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
  static uint64_t pext(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t pdep(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace slimgrad
