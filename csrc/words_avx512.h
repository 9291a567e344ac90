// Sixty-four words with AVX-512's compress and expand for words of 4 and 8 bytes; the others as in words_avx2.h (moving
// words of 1 and 2 bytes needs VBMI2, which not every AVX-512 machine has).
#pragma once

#include "words_avx2.h"

namespace slimgrad {

namespace {  // Note [Internal linkage]

struct Avx512Words : Avx2Words {
  template <class T>
  static uint8_t* squeeze(const uint8_t* p, uint64_t mask, uint8_t* out) {
    if constexpr (sizeof(T) < 4) return Avx2Words::squeeze<T>(p, mask, out);
    if constexpr (sizeof(T) == 4)
      for (int at = 0; at < 64; at += 16, mask >>= 16, p += 64) {
        const __mmask16 here = static_cast<__mmask16>(mask);
        // compress to a register, then store: compressing to memory is slow on some processors
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(here, _mm512_loadu_si512(p)));
        out += static_cast<unsigned>(__builtin_popcount(here)) * 4;
      }
    if constexpr (sizeof(T) == 8)
      for (int at = 0; at < 64; at += 8, mask >>= 8, p += 64) {
        const __mmask8 here = static_cast<__mmask8>(mask);
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(here, _mm512_loadu_si512(p)));
        out += static_cast<unsigned>(__builtin_popcount(here)) * 8;
      }
    return out;
  }

  template <class T>
  static const uint8_t* spread(const uint8_t* in, uint64_t mask, uint8_t* out) {
    if constexpr (sizeof(T) < 4) return Avx2Words::spread<T>(in, mask, out);
    if constexpr (sizeof(T) == 4)
      for (int at = 0; at < 64; at += 16, mask >>= 16, out += 64) {
        const __mmask16 here = static_cast<__mmask16>(mask);
        _mm512_storeu_si512(out, _mm512_maskz_expand_epi32(here, _mm512_loadu_si512(in)));
        in += static_cast<unsigned>(__builtin_popcount(here)) * 4;
      }
    if constexpr (sizeof(T) == 8)
      for (int at = 0; at < 64; at += 8, mask >>= 8, out += 64) {
        const __mmask8 here = static_cast<__mmask8>(mask);
        _mm512_storeu_si512(out, _mm512_maskz_expand_epi64(here, _mm512_loadu_si512(in)));
        in += static_cast<unsigned>(__builtin_popcount(here)) * 8;
      }
    return in;
  }
};

}  // namespace
}  // namespace slimgrad
