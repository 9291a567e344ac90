// Cases of the emulated intrinsics, worked out by hand from Intel's descriptions. Compiled with AVX-512 flags and
// without the emulation on the include path, the same cases run on the processor. Silent with status 0 when all hold.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>

namespace slimgrad {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  ++failures;
}

// Whether the first lanes of a vector hold exactly these bits.
template <class T, class V>
bool begins_with(const V& v, std::initializer_list<T> expected) {
  unsigned char got[sizeof(V)];
  std::memcpy(got, &v, sizeof(V));
  return std::memcmp(got, expected.begin(), expected.size() * sizeof(T)) == 0;
}

// A vector of the given first lanes, then zeros; and one whose bytes are 0, 1, 2, ... 63.
template <class T>
__m512i integers(std::initializer_list<T> first) {
  T all[64 / sizeof(T)] = {};
  std::memcpy(all, first.begin(), first.size() * sizeof(T));
  return _mm512_loadu_si512(all);
}
__m512 floats(std::initializer_list<float> first) { return _mm512_castsi512_ps(integers<float>(first)); }
__m512i counted() {
  uint8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i);
  return _mm512_loadu_si512(bytes);
}

void check_memory_and_casts() {
  uint8_t room[80];
  std::memset(room, 0xaa, sizeof room);
  _mm512_storeu_si512(room + 3, counted());
  check(room[2] == 0xaa && room[3] == 0 && room[66] == 63 && room[67] == 0xaa, "storeu_si512 writes 64 bytes");
  _mm512_storeu_ps(room + 1, _mm512_set1_ps(1.0f));
  check(room[0] == 0xaa && room[3] == 0x80 && room[64] == 0x3f && room[65] == 62, "storeu_ps writes 64 bytes");
  check(begins_with<float>(_mm512_loadu_ps(room + 1), {1, 1, 1}), "loadu_ps");
  check(begins_with<uint32_t>(_mm512_castps_si512(_mm512_set1_ps(1.0f)), {0x3f800000}), "castps_si512 keeps bits");
  check(begins_with<int8_t>(_mm512_set1_epi8(-2), {-2, -2}), "set1_epi8");
  check(begins_with<int16_t>(_mm512_set1_epi16(-2), {-2, -2}), "set1_epi16");
  check(begins_with<int32_t>(_mm512_set1_epi32(-2), {-2, -2}), "set1_epi32");
  check(begins_with<uint8_t>(_mm512_maskz_set1_epi8(0b1010, 7), {0, 7, 0, 7, 0}), "maskz_set1_epi8");
  check(begins_with<uint32_t>(_mm512_setr_epi32(9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0), {9, 8, 7, 6, 5}),
        "setr_epi32");
  check(begins_with<int64_t>(_mm512_setr_epi64(-1, 8, 7, 6, 5, 4, 3, 2), {-1, 8, 7, 6, 5, 4, 3, 2}), "setr_epi64");
  _mm512_storeu_si512(room, _mm512_setr4_epi32(1, 2, 3, 4));
  check(room[0] == 1 && room[12] == 4 && room[16] == 1 && room[60] == 4, "setr4_epi32");
  const __m512i wide = _mm512_castsi256_si512(_mm256_set1_epi8(9));
  _mm512_storeu_si512(room, _mm512_inserti64x4(wide, _mm256_set1_epi8(5), 1));
  check(room[0] == 9 && room[31] == 9 && room[32] == 5 && room[63] == 5, "castsi256_si512, inserti64x4 above it");
  _mm512_storeu_si512(room, _mm512_inserti64x4(counted(), _mm256_set1_epi8(5), 0));
  check(room[0] == 5 && room[31] == 5 && room[32] == 32 && room[63] == 63, "inserti64x4 below");
}

void check_floats() {
  const __m512 a = floats({1, kNan, 2, 0.0f}), b = floats({3, 5, kNan, -0.0f});
  check(begins_with<float>(_mm512_min_ps(a, b), {1, 5, kNan, -0.0f}), "min_ps gives the second of NaN and zeros");
  check(begins_with<float>(_mm512_max_ps(a, b), {3, 5, kNan, -0.0f}), "max_ps gives the second of NaN and zeros");
  const __m512 x = floats({1.5f, 0x1p24f, -0.0f, 3}), y = floats({2, 1, 0.0f, 4});
  check(begins_with<float>(_mm512_add_ps(x, y), {3.5f, 0x1p24f, 0.0f, 7}), "add_ps rounds to even");
  check(begins_with<float>(_mm512_sub_ps(x, y), {-0.5f, 0xffffffp0f, -0.0f, -1}), "sub_ps");
  check(begins_with<float>(_mm512_mul_ps(x, y), {3, 0x1p24f, -0.0f, 12}), "mul_ps");
  check(begins_with<float>(_mm512_mask_mov_ps(x, 0b0101, y), {2, 0x1p24f, 0.0f, 3}), "mask_mov_ps");
  check(begins_with<float>(_mm512_maskz_mov_ps(0b1001, y), {2, 0, 0.0f, 4}), "maskz_mov_ps");
  check(begins_with<float>(_mm512_mask_add_ps(y, 0b1001, x, x), {3, 1, 0.0f, 6}), "mask_add_ps");
}

void check_integers() {
  const __m512i a = integers<uint32_t>({0xffff0001, 0x80000000, 7});
  const __m512i b = integers<uint32_t>({0x0001ffff, 0x80000000, 8});
  check(begins_with<uint32_t>(_mm512_and_si512(a, b), {0x00010001, 0x80000000, 0}), "and_si512");
  check(begins_with<uint32_t>(_mm512_or_si512(a, b), {0xffffffff, 0x80000000, 15}), "or_si512");
  check(begins_with<uint32_t>(_mm512_add_epi32(a, b), {0x00010000, 0, 15}), "add_epi32 wraps");
  check(begins_with<uint32_t>(_mm512_slli_epi32(a, 16), {0x00010000, 0, 0x70000}), "slli_epi32");
  check(begins_with<uint32_t>(_mm512_srli_epi32(a, 31), {1, 1, 0}), "srli_epi32");
  check(begins_with<uint32_t>(_mm512_srli_epi32(a, 32), {0, 0, 0}), "srli_epi32 by all bits");
  check(begins_with<uint16_t>(_mm512_srli_epi16(a, 8), {0, 0xff, 0, 0x80, 0}), "srli_epi16");
  check(begins_with<uint32_t>(_mm512_mask_xor_epi32(b, 0b011, a, b), {0xfffefffe, 0, 8}), "mask_xor_epi32");
  check(begins_with<uint8_t>(_mm512_mask_add_epi8(a, 0b110, a, b), {1, 0xff, 0, 0xff}), "mask_add_epi8 wraps");
}

void check_conversions() {
  check(begins_with<uint32_t>(_mm512_cvtepu16_epi32(_mm256_set1_epi16(-1)), {65535, 65535}), "cvtepu16_epi32");
  const __m512i narrow = _mm512_packus_epi32(integers<int32_t>({1, -1, 65536, 65535, 5}), integers<int32_t>({6, 7}));
  check(begins_with<uint16_t>(narrow, {1, 0, 65535, 65535, 6, 7, 0, 0, 5, 0}), "packus_epi32");
  const __m512 x = floats({2.9f, -2.9f, 0x1p31f, -0x1p31f, kNan, kInfinity, 0x1.fffffep30f});
  check(begins_with<int32_t>(_mm512_cvttps_epi32(x), {2, -2, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, 0x7fffff80}),
        "cvttps_epi32");
  // 1 + 2^-11 is half way between 1 and 1 + 2^-10; 1 + 3 * 2^-11 half way between odd and even; 65520 overflows
  const __m512 y = floats({1, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65504, 65520, -0x1p-24f, 0x1p-25f, 0x1.8p-24f});
  check(begins_with<uint16_t>(_mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT),
                              {0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x8001, 0, 2}),
        "cvtps_ph rounds to nearest even");
  const __m256i half = _mm256_setr_epi16(0x3c00, 0x7bff, 1, -0x8000, 0x7c00, 0, 0, 0, -0x7fff, 0x400, 0, 0, 0, 0, 0, 0);
  check(begins_with<float>(_mm512_cvtph_ps(half),
                           {1, 65504, 0x1p-24f, -0.0f, kInfinity, 0, 0, 0, -0x1p-24f, 0x1p-14f, 0}),
        "cvtph_ps");
}

void check_comparisons() {
  // lanes: less, equal, greater, unordered, both zeros, unordered the other way round
  const __m512 a = floats({1, 2, 3, kNan, -0.0f, 1}), b = floats({2, 2, 2, 2, 0.0f, kNan});
  const auto low = [](__mmask16 k) { return k & 0x3f; };
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ)) == 0b101100, "cmp NLE_UQ: NaN counts as above");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)) == 0b000100, "cmp GT_OQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_GE_OS)) == 0b010110, "cmp GE_OS");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)) == 0b000001, "cmp LT_OQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_LE_OS)) == 0b010011, "cmp LE_OS");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NLT_US)) == 0b111110, "cmp NLT_US");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NGE_US)) == 0b101001, "cmp NGE_US");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NGT_UQ)) == 0b111011, "cmp NGT_UQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)) == 0b010010, "cmp EQ_OQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_EQ_UQ)) == 0b111010, "cmp EQ_UQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_OQ)) == 0b000101, "cmp NEQ_OQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ)) == 0b101101, "cmp NEQ_UQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_ORD_Q)) == 0b010111, "cmp ORD_Q");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_S)) == 0b101000, "cmp UNORD_S");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_TRUE_UQ)) == 0b111111, "cmp TRUE_UQ");
  check(low(_mm512_cmp_ps_mask(a, b, _CMP_FALSE_OQ)) == 0, "cmp FALSE_OQ");
  const __m512i x = integers<int16_t>({1, -1, 0x7fff, -0x8000}), y = integers<int16_t>({0, 0, 0x7ffe, 0x7fff});
  check(_mm512_cmpgt_epi16_mask(x, y) == 0b0101, "cmpgt_epi16_mask is signed");
  const __m512i bits = integers<uint32_t>({6, 5, 0x80000000, 0xffffffff});
  check(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(2)) == 0b1001, "test_epi32_mask");
  check(_mm512_movepi32_mask(bits) == 0b1100, "movepi32_mask");
  check(_mm512_movepi16_mask(bits) == 0b11100000, "movepi16_mask");
}

void check_moves() {
  const __m512i words = integers<uint32_t>({10, 11, 12, 13}), order = integers<uint32_t>({3, 0x10, 0x12, 1});
  check(begins_with<uint32_t>(_mm512_permutexvar_epi32(order, words), {13, 10, 12, 11, 10}), "permutexvar_epi32");
  const __m512 some = _mm512_castsi512_ps(integers<float>({0, 1.5f, 2.5f, 3.5f}));
  check(begins_with<float>(_mm512_permutexvar_ps(order, some), {3.5f, 0, 2.5f, 1.5f}), "permutexvar_ps");
  const __m512i halves = integers<uint16_t>({31, 0x20 + 1, 0});
  check(begins_with<uint16_t>(_mm512_permutexvar_epi16(halves, counted()), {0x3f3e, 0x0302, 0x0100}),
        "permutexvar_epi16 reaches all 32 lanes");
  uint8_t by[64] = {15, 0x80, 0x1f, 2};  // bits 4 to 6 do not count, bit 7 clears
  by[16] = 1, by[63] = 0x83;
  uint8_t got[64];
  _mm512_storeu_si512(got, _mm512_shuffle_epi8(counted(), _mm512_loadu_si512(by)));
  check(got[0] == 15 && got[1] == 0 && got[2] == 15 && got[3] == 2, "shuffle_epi8");
  check(got[16] == 17 && got[17] == 16 && got[63] == 0, "shuffle_epi8 stays within 16 bytes");
  const __m512i pairs = integers<uint64_t>({8 + 1, 7, 0});
  check(begins_with<uint8_t>(_mm512_permutexvar_epi64(pairs, counted()), {8, 9, 10, 11, 12, 13, 14, 15, 56}),
        "permutexvar_epi64");
  const __m512i longs = integers<uint64_t>({20, 21, 22, 23, 24, 25, 26, 27});
  check(begins_with<uint32_t>(_mm512_maskz_compress_epi32(0b1010, words), {11, 13, 0, 0}), "compress_epi32");
  check(begins_with<uint32_t>(_mm512_maskz_expand_epi32(0b1010, words), {0, 10, 0, 11, 0}), "expand_epi32");
  check(begins_with<uint64_t>(_mm512_maskz_compress_epi64(0b10000010, longs), {21, 27, 0}), "compress_epi64");
  const __m512i apart = _mm512_maskz_expand_epi64(0b10000010, longs);
  check(begins_with<uint64_t>(apart, {0, 20, 0, 0, 0, 0, 0, 21}), "expand_epi64");
}

}  // namespace
}  // namespace slimgrad

int main() {
  slimgrad::check_memory_and_casts();
  slimgrad::check_floats();
  slimgrad::check_integers();
  slimgrad::check_conversions();
  slimgrad::check_comparisons();
  slimgrad::check_moves();
  return slimgrad::failures != 0;
}
