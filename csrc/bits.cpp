// Masks and small integers over whole tensors. Every block begins at a whole byte, so threads need no index.
#include <cstring>

#include "kernels.h"
#include "parallel.h"
#include "window.h"

using namespace slimgrad;

int64_t slimgrad_pack_mask(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  const int64_t nbytes = 2 * size + (n + 7) / 8;
  if (n == 0 || capacity < nbytes) return SLIMGRAD_NO_ROOM;
  const uint8_t* first = static_cast<const uint8_t*>(words);
  int64_t other = n;
  for (int64_t block = 0; block < word_blocks(n) && other == n; ++block) {
    const int count = words_in_block(n, block);
    const int found = table->first_other(first + block * SLIMGRAD_BLOCK * size, count, first);
    if (found < count) other = block * SLIMGRAD_BLOCK + found;
  }
  const uint8_t* second = other < n ? first + other * size : first;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    return table->pack_mask(first + block * SLIMGRAD_BLOCK * size, words_in_block(n, block), first, second,
                            out + 2 * size + block * (SLIMGRAD_BLOCK / 8));
  });
  if (!ok) return SLIMGRAD_UNSUITED;
  std::memcpy(out, first, static_cast<size_t>(size));
  std::memcpy(out + size, second, static_cast<size_t>(size));
  return nbytes;
}

int64_t slimgrad_unpack_mask(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  if (nbytes != 2 * size + (n + 7) / 8) return SLIMGRAD_CORRUPT;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    return table->unpack_mask(payload + 2 * size + block * (SLIMGRAD_BLOCK / 8), payload, payload + size,
                              static_cast<uint8_t*>(words) + block * SLIMGRAD_BLOCK * size, words_in_block(n, block));
  });
  return ok ? 0 : SLIMGRAD_CORRUPT;
}

int64_t slimgrad_pack_bits(const int64_t* values, int64_t n, int32_t nbits, uint8_t* out, int64_t capacity, int threads) {
  if (n < 0 || nbits < 1 || nbits > 63) return SLIMGRAD_BAD_ARGUMENT;
  const int64_t nbytes = bits_nbytes(n, nbits);
  if (capacity < nbytes) return SLIMGRAD_NO_ROOM;
  const auto pack = kernels().lossless.pack_bits;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    return pack(values + block * SLIMGRAD_BLOCK, words_in_block(n, block), nbits, out + bits_nbytes(block * SLIMGRAD_BLOCK, nbits));
  });
  return ok ? nbytes : int64_t{SLIMGRAD_UNSUITED};
}

int64_t slimgrad_unpack_bits(const uint8_t* data, int64_t nbytes, int32_t nbits, int64_t* values, int64_t n, int threads) {
  if (n < 0 || nbits < 1 || nbits > 63) return SLIMGRAD_BAD_ARGUMENT;
  if (nbytes != bits_nbytes(n, nbits)) return SLIMGRAD_CORRUPT;
  const auto unpack = kernels().lossless.unpack_bits;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    return unpack(data + bits_nbytes(block * SLIMGRAD_BLOCK, nbits), nbits, values + block * SLIMGRAD_BLOCK, words_in_block(n, block));
  });
  return ok ? 0 : SLIMGRAD_CORRUPT;
}

int64_t slimgrad_pack_window(const int64_t* indices, int64_t n, const slimgrad_window* window, int32_t nbits,
                             uint8_t* out, int64_t capacity, int threads) {
  if (n < 0 || nbits < 1 || nbits > 31 || !is_valid(*window)) return SLIMGRAD_BAD_ARGUMENT;
  const int64_t nbytes = bits_nbytes(n, nbits);
  if (capacity < nbytes) return SLIMGRAD_NO_ROOM;
  const WindowKernel kernel(*window);
  const auto pack = kernels().lossless.pack_bits;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    int64_t offsets[kWindowStep];
    const int64_t begin = block * SLIMGRAD_BLOCK, end = begin + words_in_block(n, block);
    for (int64_t at = begin; at < end; at += kWindowStep) {
      const int count = end - at < kWindowStep ? static_cast<int>(end - at) : kWindowStep;
      if (!kernel.offsets_of(indices + at, at, count, offsets)) return false;
      if (!pack(offsets, count, nbits, out + bits_nbytes(at, nbits))) return false;
    }
    return true;
  });
  return ok ? nbytes : int64_t{SLIMGRAD_UNSUITED};
}

int64_t slimgrad_unpack_window(const uint8_t* data, int64_t nbytes, const slimgrad_window* window, int32_t nbits,
                               int64_t* indices, int64_t n, int threads) {
  if (n < 0 || nbits < 1 || nbits > 31 || !is_valid(*window)) return SLIMGRAD_BAD_ARGUMENT;
  if (nbytes != bits_nbytes(n, nbits)) return SLIMGRAD_CORRUPT;
  const WindowKernel kernel(*window);
  const auto unpack = kernels().lossless.unpack_bits;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t block) {
    const int64_t begin = block * SLIMGRAD_BLOCK;
    const int count = words_in_block(n, block);
    return unpack(data + bits_nbytes(begin, nbits), nbits, indices + begin, count) &&
           kernel.indices_of(indices + begin, begin, count);
  });
  return ok ? 0 : SLIMGRAD_CORRUPT;
}
