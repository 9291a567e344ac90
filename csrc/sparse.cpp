// zvc and rle over whole tensors: blocks dealt out to threads, an index in front; docs/format.md has the bytes.
#include <cstring>
#include <memory>
#include <vector>

#include "blocks.h"
#include "kernels.h"

namespace slimgrad {
namespace {

// The index in front of zvc and rle: `per_block` counts of 16 bits for each block, padded with zeros to 8 bytes.
int64_t index_nbytes(int64_t count, int per_block) { return (count * per_block * 2 + 7) / 8 * 8; }

struct SparseBlock {
  int64_t at;
  int literals, tokens;
};

// Read the index and find where each block begins. False: cut, padded with something, or not adding up to nbytes.
bool read_index(const uint8_t* payload, int64_t nbytes, int64_t n, int32_t size, int per_block,
                std::vector<SparseBlock>& blocks) {
  const int64_t count = word_blocks(n), header = index_nbytes(count, per_block);
  if (nbytes < header) return false;
  for (int64_t i = count * per_block * 2; i < header; ++i)
    if (payload[i]) return false;
  blocks.resize(static_cast<size_t>(count));
  int64_t at = header;
  for (int64_t block = 0; block < count; ++block) {
    uint16_t counts[2];
    std::memcpy(counts, payload + block * per_block * 2, static_cast<size_t>(per_block) * 2);
    const uint16_t literals = counts[per_block - 1];
    const int tokens = per_block == 2 ? counts[0] : 0;
    const int front = per_block == 2 ? tokens : (words_in_block(n, block) + 7) / 8;
    if (literals > SLIMGRAD_BLOCK || tokens > kMaxTokens) return false;
    blocks[static_cast<size_t>(block)] = {at, literals, tokens};
    at += front + int64_t{literals} * size;
  }
  return at == nbytes;
}

template <class Pack>
int64_t pack_sparse(const void* words, int64_t n, int32_t size, int per_block, uint8_t* out, int64_t capacity,
                    int threads, Pack pack) {
  const int64_t count = word_blocks(n), header = index_nbytes(count, per_block);
  if (capacity < header) return SLIMGRAD_NO_ROOM;
  std::vector<uint16_t> index(static_cast<size_t>(header) / 2);
  const int64_t end = encode_in_order(
      count, threads, kSparseNbytesMax, out + header, capacity - header,
      [&](int64_t block, uint8_t* scratch) {
        const uint8_t* from = static_cast<const uint8_t*>(words) + block * SLIMGRAD_BLOCK * size;
        return pack(from, words_in_block(n, block), scratch, &index[static_cast<size_t>(block * per_block)]) - scratch;
      },
      [](int64_t, int64_t, int64_t) {});
  if (end < 0) return SLIMGRAD_NO_ROOM;
  if (count) std::memcpy(out, index.data(), static_cast<size_t>(header));
  return header + end;
}

template <class Unpack>
int64_t unpack_sparse(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size, int per_block,
                      int threads, Unpack unpack) {
  std::vector<SparseBlock> blocks;
  if (!read_index(payload, nbytes, n, size, per_block, blocks)) return SLIMGRAD_CORRUPT;
  const bool ok = for_each_block(word_blocks(n), threads, [&](int64_t number) {
    const SparseBlock& block = blocks[static_cast<size_t>(number)];
    const bool is_last = number + 1 == static_cast<int64_t>(blocks.size());
    const int64_t end = is_last ? nbytes : blocks[static_cast<size_t>(number) + 1].at;
    const uint8_t* from = payload + block.at;
    std::unique_ptr<uint8_t[]> copy;  // near the end there is no slack behind the block
    if (end + kWordsSlack > nbytes) {
      copy.reset(new uint8_t[static_cast<size_t>(end - block.at) + kWordsSlack]());
      std::memcpy(copy.get(), from, static_cast<size_t>(end - block.at));
      from = copy.get();
    }
    return unpack(from, block, static_cast<uint8_t*>(words) + number * SLIMGRAD_BLOCK * size, words_in_block(n, number));
  });
  return ok ? 0 : SLIMGRAD_CORRUPT;
}

}  // namespace

const WordKernels* word_kernels(int64_t n, int32_t size) {
  if (n < 0 || (size != 1 && size != 2 && size != 4 && size != 8)) return nullptr;
  return &kernels().lossless.words[size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3];
}

}  // namespace slimgrad

using namespace slimgrad;

int64_t slimgrad_pack_zvc(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  return pack_sparse(words, n, size, 1, out, capacity, threads,
                     [&](const uint8_t* from, int count, uint8_t* to, uint16_t* index) {
                       int literals = 0;
                       uint8_t* end = table->pack_zvc(from, count, to, &literals);
                       index[0] = static_cast<uint16_t>(literals);
                       return end;
                     });
}

int64_t slimgrad_unpack_zvc(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  return unpack_sparse(payload, nbytes, words, n, size, 1, threads,
                       [&](const uint8_t* from, const SparseBlock& block, uint8_t* to, int count) {
                         return table->unpack_zvc(from, block.literals, to, count);
                       });
}

int64_t slimgrad_pack_rle(const void* words, int64_t n, int32_t size, uint8_t* out, int64_t capacity, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  return pack_sparse(words, n, size, 2, out, capacity, threads,
                     [&](const uint8_t* from, int count, uint8_t* to, uint16_t* index) {
                       int literals = 0, tokens = 0;
                       uint8_t* end = table->pack_rle(from, count, to, &literals, &tokens);
                       index[0] = static_cast<uint16_t>(tokens);
                       index[1] = static_cast<uint16_t>(literals);
                       return end;
                     });
}

int64_t slimgrad_unpack_rle(const uint8_t* payload, int64_t nbytes, void* words, int64_t n, int32_t size, int threads) {
  const WordKernels* table = word_kernels(n, size);
  if (!table) return SLIMGRAD_BAD_ARGUMENT;
  return unpack_sparse(payload, nbytes, words, n, size, 2, threads,
                       [&](const uint8_t* from, const SparseBlock& block, uint8_t* to, int count) {
                         return table->unpack_rle(from, block.literals, block.tokens, to, count);
                       });
}
