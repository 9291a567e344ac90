// What the nested code's parts share: the block index, the scratch of one block, and the per-ISA entry points.
#pragma once

#include <cstdint>

#include "slimgrad.h"

namespace slimgrad {

constexpr int kGroup = 64;                               // values per mask word
constexpr int kGroups = SLIMGRAD_BLOCK / kGroup;         // mask words per block
constexpr int kMaxPlanes = SLIMGRAD_MAX_LEVELS + 1;      // one per level and the escape plane
constexpr int kPlaneNbytes = kGroups * 8;                // a full plane
constexpr int kBodySlack = 64;                           // bit reader and writer touch at most this much beyond the end
// plane 0 full, sign, rice and unary planes at most as long, a flag per four bits, and every value escaped
constexpr int kBlockNbytesMax =
    (kMaxPlanes + 1 + SLIMGRAD_MAX_RICE) * (kPlaneNbytes * 5 / 4 + 8) + SLIMGRAD_BLOCK * 4 + kBodySlack;

enum BlockKind : uint8_t { kNonNegative = 0, kSigned = 1, kRaw = 2 };

struct BlockEntry {      // little-endian, 8 bytes, one per block in front of the blocks
  uint32_t offset;       // of the block's first byte behind the index, in units of 4 bytes
  uint8_t form;          // bits 0 and 1: BlockKind; 2: whether plane 0 is grouped; 3 to 7: how many of the last planes are
  uint8_t shape;         // bits 0 to 4: unary planes that are not empty, the escape plane included; 5: whether plane 0
                         // holds differences, 6: whether the signs do
  uint16_t escapes;      // values kept exactly

  int kind() const { return form & 3; }
  bool is_first_grouped() const { return form >> 2 & 1; }
  int grouped() const { return form >> 3; }
  int planes() const { return shape & 31; }
  bool is_first_different() const { return shape >> 5 & 1; }
  bool are_signs_different() const { return shape >> 6 & 1; }
};
static_assert(sizeof(BlockEntry) == 8);

struct BlockMasks {                         // 70 KiB: one block's planes, before packing and after unpacking
  uint64_t plane[kMaxPlanes][kGroups];
  uint64_t sign[kGroups];
  uint64_t change[kGroups];                 // of one of them, from neighbour to neighbour
  uint64_t low[SLIMGRAD_MAX_RICE][kGroups];
  uint64_t digit[4][kGroups];               // decoding: how many planes are set, in binary digits
  uint64_t packed[kGroups + kBodySlack / 8];  // the bits of one plane at the positions of the plane before
};

struct NestedCode {
  int32_t dtype;
  int32_t flags;    // SLIMGRAD_AFFINE: y = (x - centre) / scale by channel; SLIMGRAD_MIDDLE: a bin around zero
  int32_t levels;   // K, 1 to 15
  int32_t rice;     // low-order bits stored plain, 0 to 12; above 0 needs AFFINE
  int64_t channels; // value i belongs to channel (i / inner) % channels
  int64_t inner;
  int64_t apart;    // value i - apart is a neighbour of value i in a map; 1 or more
  const float* scale;       // one per channel, AFFINE only
  const float* centre;
  const float* inverse;     // 1 / scale, encoders only
  const float* thresholds;  // K + 1, rising; when rice is 0
  const float* values;      // K, what a value above thresholds[k] is restored to
};

struct NestedKernels {
  // x: the block's first value; first: its number in the tensor. Returns bytes written to out (kBlockNbytesMax of room).
  int64_t (*encode)(const void* x, int64_t first, int count, const NestedCode& code, BlockMasks& masks, uint8_t* out,
                    BlockEntry& entry);
  // body: the block's bytes, readable to kBodySlack beyond. Returns false when they are not what an encoder writes.
  bool (*decode)(const uint8_t* body, int64_t nbytes, const BlockEntry& entry, int64_t first, int count,
                 const NestedCode& code, BlockMasks& masks, void* out);
};

struct NestedHeader {  // little-endian, in front of the tables, the index and the blocks
  uint8_t version, flags, levels, rice;
  uint32_t channels;
  uint64_t inner;
  float eps;
  uint32_t seed;  // reserved for dither: 0
  uint64_t apart;
};
static_assert(sizeof(NestedHeader) == 32);

inline int itemsize(int dtype) { return dtype == SLIMGRAD_FLOAT32 ? 4 : 2; }

}  // namespace slimgrad
