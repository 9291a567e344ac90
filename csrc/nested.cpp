// The nested code over a whole tensor: header and tables, index, blocks dealt out to threads.
#include <cstring>
#include <memory>
#include <vector>

#include "blocks.h"
#include "choose.h"
#include "kernels.h"

namespace slimgrad {
namespace {

constexpr uint8_t kVersion = 3;

int64_t block_count(int64_t n) { return (n + SLIMGRAD_BLOCK - 1) / SLIMGRAD_BLOCK; }

int values_in_block(int64_t n, int64_t block) {
  const int64_t left = n - block * SLIMGRAD_BLOCK;
  return left < SLIMGRAD_BLOCK ? static_cast<int>(left) : static_cast<int>(SLIMGRAD_BLOCK);
}

BlockMasks& thread_masks() {
  thread_local std::unique_ptr<BlockMasks> masks(new BlockMasks);
  return *masks;
}

// Index and blocks. Returns their length, or -1 when they do not fit.
int64_t encode_body(const void* x, int64_t n, const NestedCode& code, uint8_t* out, int64_t capacity, int threads) {
  const int64_t count = block_count(n), index_nbytes = count * static_cast<int64_t>(sizeof(BlockEntry));
  if (capacity < index_nbytes) return -1;
  const Kernels& table = kernels();
  const auto encode = [&](int64_t block, uint8_t* scratch) {
    BlockEntry entry{};
    const int64_t first = block * SLIMGRAD_BLOCK;
    const char* from = static_cast<const char*>(x) + first * itemsize(code.dtype);
    const int64_t size =
        table.nested.encode(from, first, values_in_block(n, block), code, thread_masks(), scratch, entry);
    std::memcpy(out + block * 8, &entry, 8);
    return size;
  };
  const auto placed = [&](int64_t block, int64_t at, int64_t) {
    const uint32_t offset = static_cast<uint32_t>(at / 4);
    std::memcpy(out + block * 8, &offset, 4);
  };
  const int64_t end =
      encode_in_order(count, threads, kBlockNbytesMax, out + index_nbytes, capacity - index_nbytes, encode, placed);
  return end < 0 ? -1 : index_nbytes + end;
}

bool decode_body(const uint8_t* body, int64_t nbytes, const NestedCode& code, void* out, int64_t n, int threads) {
  const int64_t count = block_count(n), index_nbytes = count * static_cast<int64_t>(sizeof(BlockEntry));
  if (nbytes < index_nbytes) return false;
  const Kernels& table = kernels();
  const uint8_t* blocks = body + index_nbytes;
  const int64_t blocks_nbytes = nbytes - index_nbytes;
  return for_each_block(count, threads, [&](int64_t block) {
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
}

// Read header and tables; returns where the body starts, or -1.
int64_t parse(const uint8_t* payload, int64_t nbytes, int32_t dtype, ChosenCode& chosen) {
  NestedHeader header;
  if (nbytes < static_cast<int64_t>(sizeof header)) return -1;
  std::memcpy(&header, payload, sizeof header);
  const bool affine = header.flags & SLIMGRAD_AFFINE;
  if (header.version != kVersion || header.seed || header.apart < 1 || header.apart > INT64_MAX) return -1;
  if (header.flags > (SLIMGRAD_AFFINE | SLIMGRAD_MIDDLE)) return -1;
  if (!affine && (header.flags || header.rice)) return -1;
  if (header.levels < 1 || header.levels > SLIMGRAD_MAX_LEVELS || header.rice > SLIMGRAD_MAX_RICE) return -1;
  if (header.channels < 1 || header.inner < 1 || header.inner > INT64_MAX) return -1;
  if (affine && int64_t{header.channels} * 8 > nbytes) return -1;  // before memory is asked for
  NestedCode& code = chosen.code;
  code = {};
  code.dtype = dtype, code.flags = header.flags, code.levels = header.levels, code.rice = header.rice;
  code.channels = header.channels, code.inner = static_cast<int64_t>(header.inner);
  code.apart = static_cast<int64_t>(header.apart);
  place_tables(chosen);
  const int64_t tables_nbytes = static_cast<int64_t>(chosen.tables.size() * sizeof(float));
  const int64_t start = static_cast<int64_t>(sizeof header) + tables_nbytes;
  if (nbytes < start) return -1;
  if (tables_nbytes) std::memcpy(chosen.tables.data(), payload + sizeof header, static_cast<size_t>(tables_nbytes));
  return start;
}

bool is_dtype(int32_t dtype) { return dtype >= SLIMGRAD_FLOAT32 && dtype <= SLIMGRAD_BFLOAT16; }

}  // namespace
}  // namespace slimgrad

using namespace slimgrad;

int64_t slimgrad_pack_nested(const void* x, int64_t n, int32_t dtype, int64_t channels, int64_t inner, int64_t apart,
                             int32_t options, double rel, double absolute, const float* edges, uint8_t* out,
                             int64_t capacity, int threads) {
  if (n < 0 || !is_dtype(dtype) || channels < 1 || inner < 1 || apart < 1) return SLIMGRAD_BAD_ARGUMENT;
  if (!(rel >= 0) || !(absolute >= 0)) return SLIMGRAD_BAD_ARGUMENT;
  const DefaultFloats guard;
  const NestedWish wish{dtype, channels, inner, (options & SLIMGRAD_CENTRED) != 0, (options & SLIMGRAD_SAMPLED) != 0, rel,
                        absolute, options & SLIMGRAD_CENTRED ? edges : nullptr};
  ChosenCode chosen;
  if (!choose_code(x, n, wish, chosen)) return 0;
  NestedCode& code = chosen.code;
  code.apart = apart;
  if (code.flags & SLIMGRAD_AFFINE) {
    chosen.inverse.resize(static_cast<size_t>(code.channels));
    for (size_t c = 0; c < chosen.inverse.size(); ++c) chosen.inverse[c] = 1.0f / code.scale[c];
    code.inverse = chosen.inverse.data();
  }
  const float eps = chosen.eps < 0x1.fffffep127 ? static_cast<float>(chosen.eps) : 0x1.fffffep127f;
  const NestedHeader header{kVersion, static_cast<uint8_t>(code.flags), static_cast<uint8_t>(code.levels),
                            static_cast<uint8_t>(code.rice), static_cast<uint32_t>(code.channels),
                            static_cast<uint64_t>(code.inner), eps, 0, static_cast<uint64_t>(apart)};
  const int64_t tables_nbytes = static_cast<int64_t>(chosen.tables.size() * sizeof(float));
  const int64_t start = static_cast<int64_t>(sizeof header) + tables_nbytes;
  if (capacity < start) return SLIMGRAD_NO_ROOM;
  std::memcpy(out, &header, sizeof header);
  if (tables_nbytes) std::memcpy(out + sizeof header, chosen.tables.data(), static_cast<size_t>(tables_nbytes));
  const int64_t body = encode_body(x, n, code, out + start, capacity - start, threads);
  return body < 0 ? static_cast<int64_t>(SLIMGRAD_NO_ROOM) : start + body;
}

int64_t slimgrad_unpack_nested(const uint8_t* payload, int64_t nbytes, void* out, int64_t n, int32_t dtype, int threads) {
  if (n < 0 || !is_dtype(dtype)) return SLIMGRAD_BAD_ARGUMENT;
  ChosenCode chosen;
  const int64_t start = parse(payload, nbytes, dtype, chosen);
  if (start < 0) return SLIMGRAD_CORRUPT;
  return decode_body(payload + start, nbytes - start, chosen.code, out, n, threads) ? 0 : SLIMGRAD_CORRUPT;
}

int64_t slimgrad_pack_nested_form(const slimgrad_nested_form* form, const void* x, const float* edges, uint8_t* out,
                                  int threads) {
  return slimgrad_pack_nested(x, form->n, form->dtype, form->channels, form->inner, form->apart, form->options, form->rel,
                              form->absolute, edges, out, form->capacity, threads);
}

int64_t slimgrad_unpack_nested_form(const slimgrad_nested_form* form, const uint8_t* payload, int64_t nbytes, void* out,
                                    int threads) {
  return slimgrad_unpack_nested(payload, nbytes, out, form->n, form->dtype, threads);
}
