// Sixty-four words of 1, 2, 4 or 8 bytes and the operations the lossless kernels need on them, in plain C++.
// The other words_*.h offer the same names with the same results. Words may lie at any address.
#pragma once

#include <cstdint>
#include <cstring>

namespace slimgrad {

// squeeze writes and spread reads whole vectors: up to this many bytes beyond the words that count.
constexpr int kWordsSlack = 64;

// Note [Internal linkage]
// These headers are compiled several times with different instruction-set flags. Functions with external linkage would be
// merged by the linker, which could then hand AVX-512 code to a machine without it; so everything is in unnamed namespaces.
namespace {

struct PortableWords {
  template <class T>
  static T load(const uint8_t* p, int i) {
    T word;
    std::memcpy(&word, p + i * sizeof(T), sizeof(T));
    return word;
  }
  template <class T>
  static void store(uint8_t* p, int i, T word) {
    std::memcpy(p + i * sizeof(T), &word, sizeof(T));
  }

  // Bit i: word i is not `value`.
  template <class T>
  static uint64_t differs(const uint8_t* p, T value) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(load<T>(p, i) != value) << i;
    return mask;
  }
  // Append the words whose bit is set to `out` and return the new end.
  template <class T>
  static uint8_t* squeeze(const uint8_t* p, uint64_t mask, uint8_t* out) {
    for (; mask; mask &= mask - 1, out += sizeof(T)) std::memcpy(out, p + __builtin_ctzll(mask) * sizeof(T), sizeof(T));
    return out;
  }
  // Fill 64 words: the next one of `in` where the bit is set, zero elsewhere. Returns where `in` ends.
  template <class T>
  static const uint8_t* spread(const uint8_t* in, uint64_t mask, uint8_t* out) {
    std::memset(out, 0, 64 * sizeof(T));
    for (; mask; mask &= mask - 1, in += sizeof(T)) std::memcpy(out + __builtin_ctzll(mask) * sizeof(T), in, sizeof(T));
    return in;
  }
  // Fill 64 words: `one` where the bit is set, `zero` elsewhere.
  template <class T>
  static void select(uint64_t mask, T zero, T one, uint8_t* out) {
    for (int i = 0; i < 64; ++i) store<T>(out, i, mask >> i & 1 ? one : zero);
  }
};

}  // namespace
}  // namespace slimgrad
