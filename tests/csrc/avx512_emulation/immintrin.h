// Stands before the compiler's <immintrin.h> on the include path and gives csrc's AVX-512 files plain C++ in place of
// the 512-bit intrinsics, so that a machine with AVX2 runs them. Up to 256 bits the compiler's own header is used.
//
// The names are declared in namespace slimgrad, where csrc looks first, and the vectors are types of their own: an
// intrinsic that is missing here does not compile, rather than quietly meaning the compiler's. Each function says what
// Intel's description of the instruction says, lane by lane; what that leaves undefined is filled with kUndefined.
// test_intrinsics.cpp holds cases worked out by hand, and also compiles against the real header.
#pragma once

#include_next <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#undef _mm512_cmp_ps_mask  // some compilers have these as macros, which know no namespace
#undef _mm512_cmpgt_epi16_mask
#undef _mm512_cvtps_ph
#undef _mm512_inserti64x4
#undef _mm512_setr4_epi32
#undef _mm512_setr_epi32
#undef _mm512_setr_epi64
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32

namespace slimgrad {

template <class T>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  T at[kCount];
};

struct __m512 : Lanes<float> {};
struct __m512i : Lanes<uint8_t> {};

constexpr uint8_t kUndefined = 0xa5;

// The same 64 bytes seen as other lanes.
template <class To, class From>
To as(const From& from) {
  static_assert(sizeof(To) == 64 && sizeof(From) == 64);
  To to;
  std::memcpy(static_cast<void*>(&to), &from, 64);
  return to;
}

template <class T, class V>
Lanes<T> lanes(const V& v) {
  return as<Lanes<T>>(v);
}

// A vector whose lane i is f(i).
template <class V, class T, class F>
V make(F f) {
  Lanes<T> r;
  for (int i = 0; i < Lanes<T>::kCount; ++i) r.at[i] = static_cast<T>(f(i));
  return as<V>(r);
}

// A mask whose bit i is f(i), for n lanes.
template <class F>
uint64_t make_mask(int n, F f) {
  uint64_t mask = 0;
  for (int i = 0; i < n; ++i) mask |= static_cast<uint64_t>(f(i) ? 1 : 0) << i;
  return mask;
}

inline bool bit(uint64_t mask, int i) { return mask >> i & 1; }

// ---- memory, constants, casts ---------------------------------------------------------------------------------------

inline __m512 _mm512_loadu_ps(const void* p) {
  __m512 r;
  std::memcpy(&r, p, 64);
  return r;
}
inline __m512i _mm512_loadu_si512(const void* p) {
  __m512i r;
  std::memcpy(&r, p, 64);
  return r;
}
inline void _mm512_storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, 64); }
inline void _mm512_storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, 64); }

inline __m512 _mm512_set1_ps(float x) {
  return make<__m512, float>([&](int) { return x; });
}
inline __m512i _mm512_set1_epi8(char x) {
  return make<__m512i, uint8_t>([&](int) { return x; });
}
inline __m512i _mm512_set1_epi16(short x) {
  return make<__m512i, uint16_t>([&](int) { return x; });
}
inline __m512i _mm512_set1_epi32(int x) {
  return make<__m512i, uint32_t>([&](int) { return x; });
}
inline __m512i _mm512_maskz_set1_epi8(__mmask64 k, char x) {
  return make<__m512i, uint8_t>([&](int i) { return bit(k, i) ? x : 0; });
}

inline __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                                 int m, int n, int o, int p) {
  return as<__m512i>(Lanes<int>{{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p}});
}
inline __m512i _mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f,
                                 long long g, long long h) {
  return as<__m512i>(Lanes<long long>{{a, b, c, d, e, f, g, h}});
}
inline __m512i _mm512_setr4_epi32(int a, int b, int c, int d) {
  return as<__m512i>(Lanes<int>{{a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d}});
}

inline __m512 _mm512_castsi512_ps(__m512i a) { return as<__m512>(a); }
inline __m512i _mm512_castps_si512(__m512 a) { return as<__m512i>(a); }
inline __m512i _mm512_castsi256_si512(__m256i a) {  // the upper half is undefined
  __m512i r;
  std::memset(&r, kUndefined, 64);
  std::memcpy(&r, &a, 32);
  return r;
}
inline __m512i _mm512_inserti64x4(__m512i a, __m256i b, int half) {
  std::memcpy(a.at + 32 * (half & 1), &b, 32);
  return a;
}

// ---- arithmetic of floats -------------------------------------------------------------------------------------------

template <class F>
__m512 zip(__m512 a, __m512 b, F f) {
  return make<__m512, float>([&](int i) { return f(a.at[i], b.at[i]); });
}
inline __m512 _mm512_add_ps(__m512 a, __m512 b) {
  return zip(a, b, [](float x, float y) { return x + y; });
}
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) {
  return zip(a, b, [](float x, float y) { return x - y; });
}
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) {
  return zip(a, b, [](float x, float y) { return x * y; });
}
// min and max give the second operand when one is NaN and when both are zeros.
inline __m512 _mm512_min_ps(__m512 a, __m512 b) {
  return zip(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline __m512 _mm512_max_ps(__m512 a, __m512 b) {
  return zip(a, b, [](float x, float y) { return x > y ? x : y; });
}
inline __m512 _mm512_mask_mov_ps(__m512 from, __mmask16 k, __m512 a) {
  return make<__m512, float>([&](int i) { return bit(k, i) ? a.at[i] : from.at[i]; });
}
inline __m512 _mm512_maskz_mov_ps(__mmask16 k, __m512 a) { return _mm512_mask_mov_ps(_mm512_set1_ps(0.0f), k, a); }
inline __m512 _mm512_mask_add_ps(__m512 from, __mmask16 k, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(from, k, _mm512_add_ps(a, b));
}

// ---- arithmetic of integers -----------------------------------------------------------------------------------------

template <class T, class F>
__m512i zip(__m512i a, __m512i b, F f) {
  const auto x = lanes<T>(a), y = lanes<T>(b);
  return make<__m512i, T>([&](int i) { return f(x.at[i], y.at[i]); });
}
template <class T>
__m512i select(__mmask64 k, __m512i one, __m512i zero) {
  const auto x = lanes<T>(one), y = lanes<T>(zero);
  return make<__m512i, T>([&](int i) { return bit(k, i) ? x.at[i] : y.at[i]; });
}
inline __m512i _mm512_and_si512(__m512i a, __m512i b) {
  return zip<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; });
}
inline __m512i _mm512_or_si512(__m512i a, __m512i b) {
  return zip<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x | y; });
}
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return zip<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x + y; });
}
inline __m512i _mm512_slli_epi32(__m512i a, unsigned count) {
  return zip<uint32_t>(a, a, [&](uint32_t x, uint32_t) { return count < 32 ? x << count : 0; });
}
inline __m512i _mm512_srli_epi32(__m512i a, unsigned count) {
  return zip<uint32_t>(a, a, [&](uint32_t x, uint32_t) { return count < 32 ? x >> count : 0; });
}
inline __m512i _mm512_srli_epi16(__m512i a, unsigned count) {
  return zip<uint16_t>(a, a, [&](uint16_t x, uint16_t) { return count < 16 ? x >> count : 0; });
}
inline __m512i _mm512_mask_add_epi8(__m512i from, __mmask64 k, __m512i a, __m512i b) {
  return select<uint8_t>(k, zip<uint8_t>(a, b, [](int x, int y) { return x + y; }), from);
}
inline __m512i _mm512_mask_xor_epi32(__m512i from, __mmask16 k, __m512i a, __m512i b) {
  return select<uint32_t>(k, zip<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x ^ y; }), from);
}

// ---- conversion -----------------------------------------------------------------------------------------------------

inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  uint16_t from[16];
  std::memcpy(from, &a, 32);
  return make<__m512i, uint32_t>([&](int i) { return from[i]; });
}
// To unsigned 16 bits, saturated, within each 16 bytes: four of a, four of b.
inline __m512i _mm512_packus_epi32(__m512i a, __m512i b) {
  const auto x = lanes<int32_t>(a), y = lanes<int32_t>(b);
  return make<__m512i, uint16_t>([&](int i) {
    const int32_t v = (i % 8 < 4 ? x : y).at[i / 8 * 4 + i % 4];
    return v < 0 ? 0 : v > 0xffff ? 0xffff : v;
  });
}
// To integer toward zero; NaN and what 32 bits cannot hold become the smallest integer.
inline __m512i _mm512_cvttps_epi32(__m512 a) {
  return make<__m512i, int32_t>(
      [&](int i) { return a.at[i] >= -0x1p31f && a.at[i] < 0x1p31f ? static_cast<int32_t>(a.at[i]) : INT32_MIN; });
}
// float16: the same instruction on 256 bits, twice.
inline __m512 _mm512_cvtph_ps(__m256i a) {
  __m512 r;
  _mm256_storeu_ps(r.at, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(r.at + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return r;
}
inline __m256i _mm512_cvtps_ph(__m512 a, int rounding) {
  if (rounding != _MM_FROUND_TO_NEAREST_INT) std::abort();  // the 256-bit instruction wants a constant
  const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(a.at), _MM_FROUND_TO_NEAREST_INT);
  const __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(a.at + 8), _MM_FROUND_TO_NEAREST_INT);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// ---- masks ----------------------------------------------------------------------------------------------------------

// A predicate as the outcomes of a comparison for which it is true: 1 less, 2 equal, 4 greater, 8 unordered (a NaN).
// Predicates 16 to 31 are 0 to 15 again and differ only in which NaNs raise an exception flag.
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  constexpr int kTrueFor[16] = {2, 1, 3, 8, 13, 14, 12, 7, 10, 9, 11, 0, 5, 6, 4, 15};
  return static_cast<__mmask16>(make_mask(16, [&](int i) {
    const float x = a.at[i], y = b.at[i];
    return kTrueFor[predicate & 15] & (x < y ? 1 : x == y ? 2 : x > y ? 4 : 8);
  }));
}
inline __mmask32 _mm512_cmpgt_epi16_mask(__m512i a, __m512i b) {
  const auto x = lanes<int16_t>(a), y = lanes<int16_t>(b);
  return static_cast<__mmask32>(make_mask(32, [&](int i) { return x.at[i] > y.at[i]; }));
}
inline __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const auto both = lanes<uint32_t>(_mm512_and_si512(a, b));
  return static_cast<__mmask16>(make_mask(16, [&](int i) { return both.at[i] != 0; }));
}
inline __mmask16 _mm512_movepi32_mask(__m512i a) {
  return static_cast<__mmask16>(make_mask(16, [&](int i) { return lanes<int32_t>(a).at[i] < 0; }));
}
inline __mmask32 _mm512_movepi16_mask(__m512i a) {
  return static_cast<__mmask32>(make_mask(32, [&](int i) { return lanes<int16_t>(a).at[i] < 0; }));
}

// ---- moving lanes ---------------------------------------------------------------------------------------------------

// Lane i is lane index[i] of a; only the bits of the index that name a lane count.
template <class T>
Lanes<T> permuted(__m512i index, Lanes<T> a) {
  using Index = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  const auto from = lanes<Index>(index);
  return make<Lanes<T>, T>([&](int i) { return a.at[from.at[i] % Lanes<T>::kCount]; });
}
inline __m512 _mm512_permutexvar_ps(__m512i index, __m512 a) { return as<__m512>(permuted<float>(index, a)); }
inline __m512i _mm512_permutexvar_epi32(__m512i index, __m512i a) {
  return as<__m512i>(permuted(index, lanes<uint32_t>(a)));
}
inline __m512i _mm512_permutexvar_epi64(__m512i index, __m512i a) {
  return as<__m512i>(permuted(index, lanes<uint64_t>(a)));
}
inline __m512i _mm512_permutexvar_epi16(__m512i index, __m512i a) {
  return as<__m512i>(permuted(index, lanes<uint16_t>(a)));
}
// Within each 16 bytes: byte (index % 16), or zero where the index is negative.
inline __m512i _mm512_shuffle_epi8(__m512i a, __m512i index) {
  return make<__m512i, uint8_t>(
      [&](int i) { return index.at[i] & 0x80 ? 0 : a.at[i / 16 * 16 + index.at[i] % 16]; });
}

// Lanes with a set bit move together at the low end, and back; the others are zero.
template <class T>
__m512i compressed(uint64_t k, __m512i a) {
  const auto x = lanes<T>(a);
  Lanes<T> r{};
  for (int i = 0, to = 0; i < Lanes<T>::kCount; ++i)
    if (bit(k, i)) r.at[to++] = x.at[i];
  return as<__m512i>(r);
}
template <class T>
__m512i expanded(uint64_t k, __m512i a) {
  const auto x = lanes<T>(a);
  Lanes<T> r{};
  for (int i = 0, from = 0; i < Lanes<T>::kCount; ++i)
    if (bit(k, i)) r.at[i] = x.at[from++];
  return as<__m512i>(r);
}
inline __m512i _mm512_maskz_compress_epi32(__mmask16 k, __m512i a) { return compressed<uint32_t>(k, a); }
inline __m512i _mm512_maskz_compress_epi64(__mmask8 k, __m512i a) { return compressed<uint64_t>(k, a); }
inline __m512i _mm512_maskz_expand_epi32(__mmask16 k, __m512i a) { return expanded<uint32_t>(k, a); }
inline __m512i _mm512_maskz_expand_epi64(__mmask8 k, __m512i a) { return expanded<uint64_t>(k, a); }

}  // namespace slimgrad
