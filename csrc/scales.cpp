// Per-channel steps from a tensor's sums. The twin of kernels/reference/statistics.py, operation for operation: the same
// float64 arithmetic in the same order, so that both give the same bytes. The constants are explained there.
#include <algorithm>
#include <cmath>

#include "halves.h"
#include "parallel.h"
#include "slimgrad.h"

namespace {

constexpr double kArithmetic = 0x1p-22, kSmallestEps = 0x1p-100, kLargestEps = 0x1p100, kExactStep = 0x1p-126;
constexpr double kWellConditioned = 1e-10;

struct Rounding {
  double relative, subnormal;
};

Rounding rounding_of(int dtype) {
  if (dtype == SLIMGRAD_FLOAT16) return {0x1p-11, 0x1p-25};
  if (dtype == SLIMGRAD_BFLOAT16) return {0x1p-9, 0x1p-134};
  return {0x1p-24, 0x1p-150};
}

}  // namespace

int64_t slimgrad_channel_scales(const double* sums, int64_t channels, int32_t dtype, int centred, double rel,
                                double absolute, int64_t reach, float* scale, float* centre, double* largest_eps) {
  const slimgrad::DefaultFloats guard;
  const Rounding rounding = rounding_of(dtype);
  *largest_eps = 0.0;
  for (int64_t c = 0; c < channels; ++c, sums += 4) {
    double mean = 0.0, variance = sums[3] / std::max(sums[1], 1.0);
    bool is_noise = false;
    if (centred) {
      const double count = std::max(sums[0], 1.0);
      mean = sums[2] / count;
      variance = std::max(sums[3] / count - mean * mean, 0.0);
      is_noise = variance < kWellConditioned * (mean * mean) && variance + mean * mean > 0;
    }
    const double rms = std::sqrt(variance);
    const bool is_flat = rms == 0.0;
    const double eps = is_flat ? absolute : std::min(rel > 0 ? rel * rms : absolute, 2.0 * rms);
    if (!is_flat && (eps < kSmallestEps || eps > kLargestEps)) return SLIMGRAD_BAD_ARGUMENT;
    centre[c] = static_cast<float>(mean);
    const double furthest = std::fabs(static_cast<double>(centre[c])) + (2.0 * static_cast<double>(reach)) * eps;
    const double slack = (rounding.relative + kArithmetic) * furthest + rounding.subnormal;
    const bool is_exact = is_noise || slack > 0.25 * eps || eps < kSmallestEps;
    const double step = is_exact ? kExactStep : 2.0 * (eps - slack);
    scale[c] = slimgrad::float_of(slimgrad::bits_of(static_cast<float>(step)) & ~uint32_t{0xfff});
    if (!is_exact) *largest_eps = std::max(*largest_eps, eps);
  }
  return 0;
}
