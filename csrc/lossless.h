// What the parts of the lossless kernels (mask, bits, window, zvc, rle) share: the per-ISA entry points for one block.
#pragma once

#include <cstdint>

#include "slimgrad.h"
#include "words_portable.h"

namespace slimgrad {

constexpr int kWindowStep = 2048;                           // indices turned into offsets at a time
constexpr int kWordGroups = SLIMGRAD_BLOCK / 64;            // mask words per block
constexpr int kMaxTokens = SLIMGRAD_BLOCK;                  // rle: no run is shorter than one word
constexpr int kMaxRun = 128;                                // words that one token can stand for
constexpr uint8_t kZeros = 0x80;                            // token: a run of zeros
constexpr int kSparseNbytesMax = kMaxTokens + SLIMGRAD_BLOCK * 8 + kWordsSlack;  // also holds a zvc mask and its words

// Kernels for words of one size. Counts are at most SLIMGRAD_BLOCK.
struct WordKernels {
  // Pack: write a block and return its end; *literals is the number of words kept, *tokens of tokens (rle only).
  // `out` has kSparseNbytesMax bytes.
  uint8_t* (*pack_zvc)(const uint8_t* words, int count, uint8_t* out, int* literals);
  uint8_t* (*pack_rle)(const uint8_t* words, int count, uint8_t* out, int* literals, int* tokens);
  // Unpack: `in` holds what the counts say, and can be read kWordsSlack bytes beyond. False: not what pack writes.
  bool (*unpack_zvc)(const uint8_t* in, int literals, uint8_t* words, int count);
  bool (*unpack_rle)(const uint8_t* in, int literals, int tokens, uint8_t* words, int count);
  // The number of the first word that is not the very first one; count if there is none.
  int (*first_other)(const uint8_t* words, int count, const uint8_t* first);
  // Bit per word: is it `other`. False when a word is neither.
  bool (*pack_mask)(const uint8_t* words, int count, const uint8_t* first, const uint8_t* other, uint8_t* bits);
  bool (*unpack_mask)(const uint8_t* bits, const uint8_t* first, const uint8_t* other, uint8_t* words, int count);
};

// A row of pooling windows without depth or dilation: value i's window begins at (begin_y, begin_x + i * step).
// Beginnings in the padding are negative numbers in two's complement.
struct WindowRow {
  uint64_t height, width;       // of the input
  uint64_t kernel_y, kernel_x;  // at most kMaxKernelRows rows, none wider than the input
  uint64_t begin_y, begin_x, step;
};
constexpr int kMaxKernelRows = 5;

struct LosslessKernels {
  WordKernels words[4];  // of 1, 2, 4 and 8 bytes
  // Integers of nbits bits, lowest first. pack returns false when a value has more.
  bool (*pack_bits)(const int64_t* values, int count, int nbits, uint8_t* out);
  bool (*unpack_bits)(const uint8_t* in, int nbits, int64_t* values, int count);
  // Indices into the input to offsets in the window and back, in place. False: one is outside its window or the input.
  bool (*offsets_of_row)(const WindowRow& row, const int64_t* indices, int count, int64_t* offsets);
  bool (*indices_of_row)(const WindowRow& row, int64_t* offsets, int count);
};

inline int64_t word_blocks(int64_t n) { return (n + SLIMGRAD_BLOCK - 1) / SLIMGRAD_BLOCK; }

inline int words_in_block(int64_t n, int64_t block) {
  const int64_t left = n - block * SLIMGRAD_BLOCK;
  return left < SLIMGRAD_BLOCK ? static_cast<int>(left) : static_cast<int>(SLIMGRAD_BLOCK);
}

inline int64_t bits_nbytes(int64_t n, int nbits) { return (n * nbits + 7) / 8; }

// The kernels for words of this size, or null when there is no such word.
const WordKernels* word_kernels(int64_t n, int32_t size);

}  // namespace slimgrad
