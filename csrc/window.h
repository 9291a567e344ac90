// Pooling indices as offsets inside their window, for one block, and back. Common windows go row by row through the
// kernels of window.inc; those with depth, dilation or many rows take the general way here, whose divisions are by
// constants of the tensor and become multiplications.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels.h"
#include "slimgrad.h"

namespace slimgrad {

// n / d for numbers below 2^32: the high half of n * ceil(2^64 / d) is exact.
class Divider {
 public:
  explicit Divider(int64_t d) : divisor_(static_cast<uint64_t>(d)), inverse_(d == 1 ? 0 : ~uint64_t{0} / divisor_ + 1) {}
  // Divide n in place and return the remainder.
  uint64_t divide(uint64_t& n) const {
    if (!inverse_) return 0;
    const uint64_t quotient = static_cast<uint64_t>(static_cast<Wide>(inverse_) * n >> 64);
    const uint64_t remainder = n - quotient * divisor_;
    n = quotient;
    return remainder;
  }

 private:
  __extension__ typedef unsigned __int128 Wide;
  uint64_t divisor_, inverse_;
};

inline bool is_valid(const slimgrad_window& w) {
  constexpr int64_t kMaxSize = int64_t{1} << 30, kMaxProduct = int64_t{1} << 31;
  int64_t input = 1, kernel = 1;
  for (const slimgrad_span& s : w.spans) {
    for (int64_t size : {s.input, s.output, s.kernel, s.stride, s.dilation})
      if (size < 1 || size > kMaxSize) return false;
    if (s.padding < 0 || s.padding > kMaxSize) return false;
    if (s.input > kMaxProduct / input || s.kernel > kMaxProduct / kernel) return false;
    input *= s.input, kernel *= s.kernel;
  }
  return w.channels >= 1 && w.channels <= kMaxSize;
}

// Walks over the values of a tensor of indices and knows where each one's window begins.
class WindowCursor {
 public:
  WindowCursor(const slimgrad_window& w, int64_t first) : w_(w) {
    channel_ = first % w.channels;
    first /= w.channels;
    for (int dim = 2; dim >= 0; --dim) {
      at_[dim] = first % w.spans[dim].output;
      first /= w.spans[dim].output;
      begin_[dim] = at_[dim] * w.spans[dim].stride - w.spans[dim].padding;
    }
  }
  int64_t begin(int dim) const { return begin_[dim]; }
  void next() {
    if (++channel_ < w_.channels) return;
    channel_ = 0;
    for (int dim = 2; dim >= 0; --dim) {
      const slimgrad_span& s = w_.spans[dim];
      begin_[dim] += s.stride;
      if (++at_[dim] < s.output) return;
      at_[dim] = 0;
      begin_[dim] = -s.padding;
    }
  }

 private:
  const slimgrad_window& w_;
  int64_t channel_, at_[3], begin_[3];
};

class WindowKernel {
 public:
  explicit WindowKernel(const slimgrad_window& w)
      : w_(w),
        has_rows_(is_made_of_rows(w)),
        total_(static_cast<uint64_t>(w.spans[0].input * w.spans[1].input * w.spans[2].input)),
        positions_(static_cast<uint64_t>(w.spans[0].kernel * w.spans[1].kernel * w.spans[2].kernel)),
        by_input_{Divider(w.spans[0].input), Divider(w.spans[1].input), Divider(w.spans[2].input)},
        by_kernel_{Divider(w.spans[0].kernel), Divider(w.spans[1].kernel), Divider(w.spans[2].kernel)},
        by_dilation_{Divider(w.spans[0].dilation), Divider(w.spans[1].dilation), Divider(w.spans[2].dilation)} {}

  // Returns false at an index that is not inside its window.
  bool offsets_of(const int64_t* indices, int64_t first, int count, int64_t* offsets) const {
    if (!has_rows_) return offsets_of_any(indices, first, count, offsets);
    return for_each_row(first, count, [&](const WindowRow& row, int at, int length) {
      return kernels().lossless.offsets_of_row(row, indices + at, length, offsets + at);
    });
  }

  // Turn offsets into indices in place. Returns false at one that leaves the window or the input.
  bool indices_of(int64_t* offsets, int64_t first, int count) const {
    if (!has_rows_) return indices_of_any(offsets, first, count);
    return for_each_row(first, count, [&](const WindowRow& row, int at, int length) {
      return kernels().lossless.indices_of_row(row, offsets + at, length);
    });
  }

 private:
  static bool is_made_of_rows(const slimgrad_window& w) {
    const slimgrad_span &depth = w.spans[0], &y = w.spans[1], &x = w.spans[2];
    const bool is_flat = depth.input == 1 && depth.output == 1 && depth.kernel == 1 && depth.padding == 0;
    return is_flat && y.dilation == 1 && x.dilation == 1 && y.kernel <= kMaxKernelRows && x.kernel <= x.input;
  }

  // Values whose windows follow each other: a row of the output, or the channels of one position.
  template <class Body>
  bool for_each_row(int64_t first, int count, Body body) const {
    const slimgrad_span &y = w_.spans[1], &x = w_.spans[2];
    const int64_t row_length = w_.channels > 1 ? w_.channels : x.output, step = w_.channels > 1 ? 0 : x.stride;
    for (int at = 0; at < count;) {
      const int64_t position = (first + at) / w_.channels;
      const int64_t begin_x = position % x.output * x.stride - x.padding;
      const int64_t begin_y = position / x.output % y.output * y.stride - y.padding;
      const WindowRow row{unsign(y.input), unsign(x.input), unsign(y.kernel), unsign(x.kernel),
                          unsign(begin_y), unsign(begin_x), unsign(step)};
      const int64_t left = row_length - (first + at) % row_length;
      const int length = left < count - at ? static_cast<int>(left) : count - at;
      if (!body(row, at, length)) return false;
      at += length;
    }
    return true;
  }
  static uint64_t unsign(int64_t n) { return static_cast<uint64_t>(n); }

  bool offsets_of_any(const int64_t* indices, int64_t first, int count, int64_t* offsets) const {
    WindowCursor cursor(w_, first);
    for (int i = 0; i < count; ++i, cursor.next()) {
      uint64_t rest = static_cast<uint64_t>(indices[i]);
      if (rest >= total_) return false;
      uint64_t offset = 0, scale = 1;
      for (int dim = 2; dim >= 0; --dim) {
        const uint64_t kernel = static_cast<uint64_t>(w_.spans[dim].kernel);
        uint64_t step = by_input_[dim].divide(rest) - static_cast<uint64_t>(cursor.begin(dim));
        if (step > UINT32_MAX || by_dilation_[dim].divide(step) != 0 || step >= kernel) return false;
        offset += step * scale;
        scale *= kernel;
      }
      offsets[i] = static_cast<int64_t>(offset);
    }
    return true;
  }

  bool indices_of_any(int64_t* offsets, int64_t first, int count) const {
    WindowCursor cursor(w_, first);
    for (int i = 0; i < count; ++i, cursor.next()) {
      uint64_t rest = static_cast<uint64_t>(offsets[i]);
      if (rest >= positions_) return false;
      int64_t index = 0, scale = 1;
      for (int dim = 2; dim >= 0; --dim) {
        const slimgrad_span& s = w_.spans[dim];
        const int64_t at = cursor.begin(dim) + static_cast<int64_t>(by_kernel_[dim].divide(rest)) * s.dilation;
        if (at < 0 || at >= s.input) return false;
        index += at * scale;
        scale *= s.input;
      }
      offsets[i] = index;
    }
    return true;
  }

  slimgrad_window w_;
  bool has_rows_;
  uint64_t total_, positions_;
  Divider by_input_[3], by_kernel_[3], by_dilation_[3];
};

}  // namespace slimgrad
