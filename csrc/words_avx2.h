// Sixty-four words in AVX2 registers; the same names as words_portable.h, and the same results.
// Small tables turn eight bits of a mask into the shuffle that moves the marked words together, or apart again.
#pragma once

#include <immintrin.h>

#include "words_portable.h"

namespace slimgrad {

struct ShuffleTables {
  uint8_t together[256][8];   // the positions of the set bits, then zeros
  uint8_t apart[256][8];      // at each set bit its rank; 0x80 elsewhere, which pshufb turns into zero
  uint8_t together2[256][16]; // the same for words of two bytes
  uint8_t apart2[256][16];
};

constexpr ShuffleTables make_shuffle_tables() {
  ShuffleTables t{};
  for (int mask = 0; mask < 256; ++mask) {
    uint8_t rank = 0;
    for (uint8_t i = 0; i < 8; ++i) {
      const bool is_set = mask >> i & 1;
      t.apart[mask][i] = is_set ? rank : 0x80;
      t.apart2[mask][2 * i] = is_set ? static_cast<uint8_t>(2 * rank) : 0x80;
      t.apart2[mask][2 * i + 1] = is_set ? static_cast<uint8_t>(2 * rank + 1) : 0x80;
      if (!is_set) continue;
      t.together2[mask][2 * rank] = static_cast<uint8_t>(2 * i);
      t.together2[mask][2 * rank + 1] = static_cast<uint8_t>(2 * i + 1);
      t.together[mask][rank++] = i;
    }
  }
  return t;
}

alignas(64) inline constexpr ShuffleTables kShuffles = make_shuffle_tables();

namespace {  // Note [Internal linkage]

struct Avx2Words {
  static __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static __m128i load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static void store32(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static void store16(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
  static void store8(uint8_t* p, __m128i v) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), v); }

  template <class T>
  static __m256i all(T word) {
    if constexpr (sizeof(T) == 1) return _mm256_set1_epi8(static_cast<char>(word));
    if constexpr (sizeof(T) == 2) return _mm256_set1_epi16(static_cast<int16_t>(word));
    if constexpr (sizeof(T) == 4) return _mm256_set1_epi32(static_cast<int32_t>(word));
    if constexpr (sizeof(T) == 8) return _mm256_set1_epi64x(static_cast<int64_t>(word));
  }

  // Bits of the words equal to `v` in the next 32 words.
  template <class T>
  static uint32_t equal32(const uint8_t* p, __m256i v) {
    if constexpr (sizeof(T) == 1)
      return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(load32(p), v)));
    if constexpr (sizeof(T) == 2) {
      const __m256i a = _mm256_cmpeq_epi16(load32(p), v), b = _mm256_cmpeq_epi16(load32(p + 32), v);
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
      return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    }
    uint32_t mask = 0;
    if constexpr (sizeof(T) == 4)
      for (int i = 0; i < 4; ++i) {
        const __m256 lanes = _mm256_castsi256_ps(_mm256_cmpeq_epi32(load32(p + 32 * i), v));
        mask |= static_cast<uint32_t>(_mm256_movemask_ps(lanes)) << 8 * i;
      }
    if constexpr (sizeof(T) == 8)
      for (int i = 0; i < 8; ++i) {
        const __m256d lanes = _mm256_castsi256_pd(_mm256_cmpeq_epi64(load32(p + 32 * i), v));
        mask |= static_cast<uint32_t>(_mm256_movemask_pd(lanes)) << 4 * i;
      }
    return mask;
  }
  template <class T>
  static uint64_t differs(const uint8_t* p, T value) {
    const __m256i v = all(value);
    return ~(equal32<T>(p, v) | static_cast<uint64_t>(equal32<T>(p + 32 * sizeof(T), v)) << 32);
  }

  // Four words of 8 bytes are moved as eight of 4: every bit of the mask counts twice.
  static uint32_t twice(uint32_t mask) {
    return static_cast<uint32_t>(_pdep_u32(mask, 0x55) | _pdep_u32(mask, 0xaa));
  }

  template <class T>
  static uint8_t* squeeze(const uint8_t* p, uint64_t mask, uint8_t* out) {
    constexpr int kStep = sizeof(T) == 8 ? 4 : 8;
    for (int at = 0; at < 64; at += kStep, mask >>= kStep, p += kStep * sizeof(T)) {
      const uint32_t here = static_cast<uint32_t>(mask & ((1u << kStep) - 1));
      if constexpr (sizeof(T) == 1) store8(out, _mm_shuffle_epi8(load8(p), load8(kShuffles.together[here])));
      if constexpr (sizeof(T) == 2) store16(out, _mm_shuffle_epi8(load16(p), load16(kShuffles.together2[here])));
      if constexpr (sizeof(T) >= 4) {
        const __m128i order = load8(kShuffles.together[sizeof(T) == 8 ? twice(here) : here]);
        store32(out, _mm256_permutevar8x32_epi32(load32(p), _mm256_cvtepu8_epi32(order)));
      }
      out += static_cast<unsigned>(__builtin_popcount(here)) * sizeof(T);
    }
    return out;
  }

  template <class T>
  static const uint8_t* spread(const uint8_t* in, uint64_t mask, uint8_t* out) {
    constexpr int kStep = sizeof(T) == 8 ? 4 : 8;
    for (int at = 0; at < 64; at += kStep, mask >>= kStep, out += kStep * sizeof(T)) {
      const uint32_t here = static_cast<uint32_t>(mask & ((1u << kStep) - 1));
      if constexpr (sizeof(T) == 1) store8(out, _mm_shuffle_epi8(load8(in), load8(kShuffles.apart[here])));
      if constexpr (sizeof(T) == 2) store16(out, _mm_shuffle_epi8(load16(in), load16(kShuffles.apart2[here])));
      if constexpr (sizeof(T) >= 4) {
        // sign extension keeps 0x80 negative: such lanes are cleared after the permutation, which ignores the sign
        const __m256i order = _mm256_cvtepi8_epi32(load8(kShuffles.apart[sizeof(T) == 8 ? twice(here) : here]));
        const __m256i moved = _mm256_permutevar8x32_epi32(load32(in), order);
        store32(out, _mm256_andnot_si256(_mm256_srai_epi32(order, 31), moved));
      }
      in += static_cast<unsigned>(__builtin_popcount(here)) * sizeof(T);
    }
    return in;
  }

  // All ones in the lanes whose bit is set, for the 32 bytes of words that the lowest bits are about.
  template <class T>
  static __m256i lanes_of_bits(uint32_t mask) {
    if constexpr (sizeof(T) == 1) {
      const __m256i byte_of_lane = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
      const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
      const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(mask)), byte_of_lane);
      return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    }
    if constexpr (sizeof(T) == 2) {
      const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
      return _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(static_cast<int16_t>(mask)), bit), bit);
    }
    if constexpr (sizeof(T) == 4) {
      const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
      return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(mask)), bit), bit);
    }
    const __m256i bit = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(static_cast<int64_t>(mask)), bit), bit);
  }
  template <class T>
  static void select(uint64_t mask, T zero, T one, uint8_t* out) {
    constexpr int kStep = 32 / sizeof(T);
    const __m256i zeros = all(zero), ones = all(one);
    for (int at = 0; at < 64; at += kStep, mask >>= kStep, out += 32)
      store32(out, _mm256_blendv_epi8(zeros, ones, lanes_of_bits<T>(static_cast<uint32_t>(mask))));
  }
};

}  // namespace
}  // namespace slimgrad
