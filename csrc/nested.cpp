// The nested code over a whole tensor: blocks dealt out to threads, index in front.
#include <cstring>
#include <memory>
#include <vector>

#include "blocks.h"
#include "kernels.h"

namespace slimgrad {
namespace {

bool is_valid(const slimgrad_nested& code, int64_t n) {
  if (n < 0 || code.dtype < SLIMGRAD_FLOAT32 || code.dtype > SLIMGRAD_BFLOAT16) return false;
  if (code.levels < 1 || code.levels > SLIMGRAD_MAX_LEVELS || code.channels < 1 || code.inner < 1) return false;
  if (code.flags & ~(SLIMGRAD_AFFINE | SLIMGRAD_MIDDLE)) return false;
  if (code.rice < 0 || code.rice > SLIMGRAD_MAX_RICE) return false;
  const bool affine = code.flags & SLIMGRAD_AFFINE;
  if (affine ? !code.scale || !code.centre : code.rice > 0 || (code.flags & SLIMGRAD_MIDDLE)) return false;
  return code.rice > 0 || (code.thresholds && code.values);
}

int64_t block_count(int64_t n) { return (n + SLIMGRAD_BLOCK - 1) / SLIMGRAD_BLOCK; }

int values_in_block(int64_t n, int64_t block) {
  const int64_t left = n - block * SLIMGRAD_BLOCK;
  return left < SLIMGRAD_BLOCK ? static_cast<int>(left) : static_cast<int>(SLIMGRAD_BLOCK);
}

BlockMasks& thread_masks() {
  thread_local std::unique_ptr<BlockMasks> masks(new BlockMasks);
  return *masks;
}

}  // namespace
}  // namespace slimgrad

using namespace slimgrad;

int64_t slimgrad_nested_encode(const void* x, int64_t n, const slimgrad_nested* wish, uint8_t* out, int64_t capacity,
                               int threads) {
  if (!is_valid(*wish, n)) return SLIMGRAD_BAD_ARGUMENT;
  const int64_t count = block_count(n), index_nbytes = count * static_cast<int64_t>(sizeof(BlockEntry));
  if (capacity < index_nbytes) return SLIMGRAD_NO_ROOM;
  NestedCode code{*wish, nullptr};
  std::vector<float> inverse;
  if (code.flags & SLIMGRAD_AFFINE) {
    inverse.resize(static_cast<size_t>(code.channels));
    for (size_t c = 0; c < inverse.size(); ++c) inverse[c] = 1.0f / code.scale[c];
    code.inverse = inverse.data();
  }
  const Kernels& table = kernels();
  std::vector<BlockEntry> index(static_cast<size_t>(count));
  const int64_t end = encode_in_order(
      count, threads, kBlockNbytesMax, out + index_nbytes, capacity - index_nbytes,
      [&](int64_t block, uint8_t* scratch) {
        const int64_t first = block * SLIMGRAD_BLOCK;
        const char* from = static_cast<const char*>(x) + first * itemsize(code.dtype);
        return table.nested.encode(from, first, values_in_block(n, block), code, thread_masks(), scratch,
                                   index[static_cast<size_t>(block)]);
      },
      [&](int64_t block, int64_t at, int64_t) {
        index[static_cast<size_t>(block)].offset = static_cast<uint32_t>(at / 4);
      });
  if (end < 0) return SLIMGRAD_NO_ROOM;
  if (count) std::memcpy(out, index.data(), static_cast<size_t>(index_nbytes));
  return index_nbytes + end;
}

int64_t slimgrad_nested_decode(const uint8_t* body, int64_t nbytes, const slimgrad_nested* wish, void* out, int64_t n,
                               int threads) {
  if (!is_valid(*wish, n)) return SLIMGRAD_BAD_ARGUMENT;
  const int64_t count = block_count(n), index_nbytes = count * static_cast<int64_t>(sizeof(BlockEntry));
  if (nbytes < index_nbytes) return SLIMGRAD_CORRUPT;
  const NestedCode code{*wish, nullptr};
  const Kernels& table = kernels();
  const uint8_t* blocks = body + index_nbytes;
  const int64_t blocks_nbytes = nbytes - index_nbytes;
  const bool ok = for_each_block(count, threads, [&](int64_t block) {
    BlockEntry entry, next;
    std::memcpy(&entry, body + block * 8, 8);
    int64_t end = blocks_nbytes;
    if (block + 1 < count) {
      std::memcpy(&next, body + (block + 1) * 8, 8);
      end = int64_t{next.offset} * 4;
    }
    const int64_t at = int64_t{entry.offset} * 4, size = end - at;
    if (size < 0 || end > blocks_nbytes || size > kBlockNbytesMax - kBodySlack) return false;
    // a copy with slack behind it lets the bit reader run ahead without ever leaving the payload
    thread_local std::unique_ptr<uint8_t[]> copy(new uint8_t[kBlockNbytesMax]);
    if (size) std::memcpy(copy.get(), blocks + at, static_cast<size_t>(size));
    std::memset(copy.get() + size, 0, kBodySlack);
    const int64_t first = block * SLIMGRAD_BLOCK;
    char* to = static_cast<char*>(out) + first * itemsize(code.dtype);
    return table.nested.decode(copy.get(), size, entry, first, values_in_block(n, block), code, thread_masks(), to);
  });
  return ok ? 0 : SLIMGRAD_CORRUPT;
}

int64_t slimgrad_moments(const void* x, int64_t n, int32_t dtype, int64_t channels, int64_t inner, int64_t run,
                         int64_t every, double* out) {
  if (n < 0 || channels < 1 || inner < 1 || run < 1 || every < run) return SLIMGRAD_BAD_ARGUMENT;
  const DefaultFloats guard;
  const Kernels& table = kernels();
  std::memset(out, 0, sizeof(double) * 4 * static_cast<size_t>(channels));
  const int size = itemsize(dtype);
  if (channels == 1) {
    for (int64_t at = 0; at < n; at += every)
      table.moments(static_cast<const char*>(x) + at * size, n - at < run ? n - at : run, dtype, out);
    return 0;
  }
  for (int64_t at = 0; at < n; at += every) {  // a run may cross channels: take it piece by piece
    const int64_t end = n - at < run ? n : at + run;
    for (int64_t i = at; i < end;) {
      const int64_t channel = i / inner % channels, left = inner - i % inner;
      const int64_t piece = end - i < left ? end - i : left;
      table.moments(static_cast<const char*>(x) + i * size, piece, dtype, out + channel * 4);
      i += piece;
    }
  }
  return 0;
}
