// Appending and reading runs of at most 64 bits, least significant bit first.
#pragma once

#include <cstdint>
#include <cstring>

namespace slimgrad {

inline uint64_t load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

inline void store64(uint8_t* p, uint64_t word) { std::memcpy(p, &word, 8); }

// Writes whole words ahead of the end: needs 8 bytes of slack. No branch depends on the data.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : begin_(out), out_(out) {}

  // Bits above `count` must be zero.
  void put(uint64_t bits, unsigned count) {
    const uint64_t word = pending_ | bits << used_;
    store64(out_, word);
    const uint64_t carry = bits >> 1 >> (63 - used_);
    const unsigned end = used_ + count;
    out_ += end >> 6 << 3;
    pending_ = end >> 6 ? carry : word;
    used_ = end & 63;
  }

  int64_t count() const { return (out_ - begin_) * 8 + used_; }

  // Pad with zero bits to a multiple of 4 bytes and return the end.
  uint8_t* finish() {
    store64(out_, pending_);
    return out_ + (used_ + 31) / 32 * 4;
  }

 private:
  uint8_t* const begin_;
  uint8_t* out_;
  uint64_t pending_ = 0;
  unsigned used_ = 0;
};

// Reads up to 16 bytes beyond the position: needs slack.
class BitReader {
 public:
  explicit BitReader(const uint8_t* in) : in_(in) {}

  // The next `count` bits; bits above them are arbitrary (pdep ignores them).
  uint64_t get(unsigned count) {
    const uint8_t* word = in_ + (at_ >> 6 << 3);
    const unsigned shift = at_ & 63;
    at_ += count;
    return load64(word) >> shift | load64(word + 8) << 1 << (63 - shift);
  }

 private:
  const uint8_t* in_;
  uint64_t at_ = 0;
};

inline int64_t padded_nbytes(int64_t bits) { return (bits + 31) / 32 * 4; }

}  // namespace slimgrad
