// From a bound to a nested code: sums over the values, steps per channel, tables. The twin of
// kernels/reference/nested_choice.py, operation for operation in float64, so that both write the same bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "nested.h"

namespace slimgrad {

struct NestedWish {
  int32_t dtype;
  int64_t channels, inner;
  bool centred;   // a middle bin around the mean instead of exact signs
  bool sampled;   // take the RMS from a sample
  double rel;     // eps = rel x RMS when above zero, else `absolute`
  double absolute;
  const float* edges;  // by channel, or null: no bin of a centred code contains values on both sides of it
};

struct ChosenCode {
  NestedCode code;
  double eps = 0.0;
  std::vector<float> tables;  // scale, centre, thresholds, values: as they lie in the header; code points into it
  std::vector<float> inverse;
};

// Returns false when the values had better stay raw.
bool choose_code(const void* x, int64_t n, const NestedWish& wish, ChosenCode& chosen);

// Lay out the tables of a code with these counts and point into them: the one place that knows their order.
void place_tables(ChosenCode& chosen);

}  // namespace slimgrad
