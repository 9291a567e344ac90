#include "choose.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "halves.h"
#include "kernels.h"

namespace slimgrad {
namespace {

// Reasons for these numbers stand beside their twins in kernels/reference/nested_choice.py.
constexpr int64_t kSampleRun = 64, kSampleRuns = 256, kRunsPerChannel = 2, kGolden = 40503;
constexpr int64_t kUsualRuns = 16, kUsualStretch = 6;
constexpr int kCandidates = 8;
constexpr double kMostFitting = 4.0, kUsualReach = 4.0;
constexpr double kArithmetic = 0x1p-22, kSmallestEps = 0x1p-100, kLargestEps = 0x1p100, kExactStep = 0x1p-126;
constexpr double kWellConditioned = 1e-10, kSqrt2 = 1.4142135623730951;
constexpr int kEpsBits = 8, kCoarseReach = 256;
constexpr double kUsualRms = 6.0;

struct Grid {
  double relative, subnormal, largest, tiny;
  int reach;
};

Grid grid_of(int dtype) {
  if (dtype == SLIMGRAD_FLOAT16) return {0x1p-11, 0x1p-25, 65504.0, 0x1p-14, 256};
  if (dtype == SLIMGRAD_BFLOAT16) return {0x1p-9, 0x1p-134, 0x1.fep127, 0x1p-126, 64};
  return {0x1p-24, 0x1p-150, 0x1.fffffep127, 0x1p-126, SLIMGRAD_MAX_LEVELS << SLIMGRAD_MAX_RICE};
}

float value_at(const void* x, int64_t i, int dtype) {
  if (dtype == SLIMGRAD_FLOAT32) return static_cast<const float*>(x)[i];
  const uint16_t half = static_cast<const uint16_t*>(x)[i];
  return dtype == SLIMGRAD_FLOAT16 ? float16_to_float(half) : bfloat16_to_float(half);
}

struct Sums {
  double count = 0, nonzero = 0, sum = 0, squares = 0;
};

void add_run(const void* x, int64_t from, int64_t to, const NestedWish& wish, std::vector<Sums>& sums) {
  constexpr int64_t kWorthAVector = 16;
  while (from < to) {
    const int64_t channel = wish.channels == 1 ? 0 : from / wish.inner % wish.channels;
    const int64_t left = wish.channels == 1 ? to - from : wish.inner - from % wish.inner;
    const int64_t end = from + std::min(to - from, left);
    Sums& s = sums[static_cast<size_t>(channel)];
    if (end - from >= kWorthAVector) {
      double out[4] = {};
      kernels().moments(static_cast<const char*>(x) + from * itemsize(wish.dtype), end - from, wish.dtype, out);
      s.count += out[0], s.nonzero += out[1], s.sum += out[2], s.squares += out[3];
      from = end;
    }
    for (; from < end; ++from) {
      const double v = value_at(x, from, wish.dtype);
      if (!std::isfinite(v)) continue;
      s.count += 1, s.nonzero += v != 0, s.sum += v, s.squares += v * v;
    }
  }
}

// The values of a channel that have long stretches of equal neighbours; see _usual in the reference.
struct Usual {
  float last = NAN, values[kCandidates] = {};
  int64_t stretch = 0, counts[kCandidates] = {};

  void add(float v) {
    stretch = v == last ? stretch + 1 : 1;
    last = v;
    if (stretch < kUsualStretch) return;
    for (int i = 0; i < kCandidates; ++i) {
      if (counts[i] && values[i] != v) continue;
      values[i] = v, ++counts[i];
      return;
    }
  }

  float most() const {
    const int64_t* best = std::max_element(counts, counts + kCandidates);
    return *best ? values[best - counts] : NAN;
  }
};

// Whether these are finite numbers of which no two neighbours are equal, as nearly always.
bool all_differ(const float* x, int64_t n) {
  int alike = 0;
  for (int64_t i = 1; i < n; ++i) alike += (x[i] == x[i - 1]) | !(std::fabs(x[i]) <= std::numeric_limits<float>::max());
  return alike == 0 && std::isfinite(x[0]);
}

void look_for_usual(const void* x, int64_t from, int64_t to, const NestedWish& wish, std::vector<Usual>& usual) {
  while (from < to) {
    Usual& u = usual[static_cast<size_t>(wish.channels == 1 ? 0 : from / wish.inner % wish.channels)];
    const int64_t left = wish.channels == 1 ? to - from : wish.inner - from % wish.inner;
    const int64_t end = from + std::min(to - from, left);
    if (wish.dtype == SLIMGRAD_FLOAT32 && all_differ(static_cast<const float*>(x) + from, end - from)) {
      u.add(value_at(x, from, wish.dtype));
      if (end - from > 1) u.last = value_at(x, end - 1, wish.dtype), u.stretch = 1;
      from = end;
    }
    for (; from < end; ++from) {
      const float v = value_at(x, from, wish.dtype);
      if (std::isfinite(v)) u.add(v);
    }
  }
}

std::vector<Sums> sums_of(const void* x, int64_t n, const NestedWish& wish, std::vector<Usual>& usual) {
  std::vector<Sums> sums(static_cast<size_t>(wish.channels));
  const int64_t per_channel = std::max(kRunsPerChannel, (kSampleRuns + wish.channels - 1) / wish.channels);
  const int64_t runs = per_channel * wish.channels;
  if (!(wish.sampled || wish.rel == 0) || n <= 2 * kSampleRun * runs) {
    add_run(x, 0, n, wish, sums);
    return sums;
  }
  const int64_t between = std::max<int64_t>(1, per_channel / kUsualRuns);
  const int64_t room = wish.inner >= kSampleRun ? wish.inner - kSampleRun + 1 : wish.inner;
  for (int64_t k = 0; k < runs; ++k) {
    const int64_t part = k / wish.channels * 65536 + k * kGolden % 65536;
    const int64_t place = part * (n / wish.channels) / (per_channel * 65536);
    const int64_t row = place / wish.inner * wish.channels + k % wish.channels;
    const int64_t start = row * wish.inner + place % wish.inner * room / wish.inner;
    add_run(x, start, std::min(n, start + kSampleRun), wish, sums);
    if (wish.centred && k / wish.channels % between == 0)
      look_for_usual(x, start, std::min(n, start + kSampleRun), wish, usual);
  }
  return sums;
}

double overall_rms(const std::vector<Sums>& sums, bool centred) {
  double squares = 0, weight = 0;
  for (const Sums& s : sums) {
    squares += centred ? s.squares - s.sum * s.sum / std::max(s.count, 1.0) : s.squares;
    weight += centred ? s.count : s.nonzero;
  }
  return std::sqrt(std::max(squares, 0.0) / std::max(weight, 1.0));
}

double rounded_down(double x) {
  if (!(x > 0) || !std::isfinite(x)) return x;
  int exponent;
  const double mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::floor(std::ldexp(mantissa, kEpsBits)), exponent - kEpsBits);
}

void split(double rms_in_steps, int reach, NestedCode& code) {
  code.rice = 0;
  while (code.rice < SLIMGRAD_MAX_RICE && 0.55 * rms_in_steps >= kSqrt2 * (1 << code.rice)) ++code.rice;
  while (code.rice > 0 && reach >> code.rice < 2) --code.rice;
  code.levels = std::min<int>(SLIMGRAD_MAX_LEVELS, reach >> code.rice);
  if (reach <= kCoarseReach && code.rice == 0)
    code.levels = std::min(code.levels, std::max(4, static_cast<int>(std::ceil(kUsualRms * rms_in_steps)) + 1));
}

double on_grid(double x, int dtype, const Grid& grid) {
  if (x >= grid.largest) return grid.largest;
  float below = static_cast<float>(x);
  if (below > x) below = std::nextafterf(below, 0.0f);
  if (dtype == SLIMGRAD_BFLOAT16) return float_of(bits_of(below) & 0xffff0000);
  if (dtype == SLIMGRAD_FLOAT16) return float16_to_float(float16_at_most(below));
  return below;
}

// Thresholds and values on the dtype's own grid.
bool grid_code(double eps, int dtype, const Grid& grid, ChosenCode& chosen) {
  float thresholds[SLIMGRAD_MAX_LEVELS + 1] = {}, values[SLIMGRAD_MAX_LEVELS];
  const double shrunk = eps * (1.0 - 0x1p-40);
  int levels = 0;
  for (; levels < SLIMGRAD_MAX_LEVELS; ++levels) {
    const double value = on_grid(thresholds[levels] + shrunk, dtype, grid);
    if (value <= thresholds[levels]) break;
    values[levels] = static_cast<float>(value);
    thresholds[levels + 1] = static_cast<float>(on_grid(value + shrunk, dtype, grid));
  }
  if (levels == 0) return false;
  chosen.code = {};
  chosen.code.dtype = dtype;
  chosen.code.levels = levels;
  chosen.code.channels = chosen.code.inner = 1;
  chosen.eps = eps;
  place_tables(chosen);
  std::copy_n(thresholds, levels + 1, const_cast<float*>(chosen.code.thresholds));
  std::copy_n(values, levels, const_cast<float*>(chosen.code.values));
  return true;
}

// The centre that is nearest to the mean of those that make a limit between two bins of the edge.
float centre_beside(double edge, double mean, double step) {
  return static_cast<float>(edge + (std::floor((mean - edge) / step) + 0.5) * step);
}

// The same, with a usual value in the middle of a bin.
float centre_on(double usual, double mean, double step) {
  return static_cast<float>(usual + std::floor((mean - usual) / step + 0.5) * step);
}

float few_bits(double step) { return float_of(bits_of(static_cast<float>(step)) & ~uint32_t{0xfff}); }

double off_middle(double distance, double step) {
  return std::fabs(distance - (std::floor(distance / step) + 0.5) * step);
}

// A finer step with which a value so far from an edge lies in the middle of its bin, or nearer to it.
double fitted_step(double step, double distance, double least) {
  least = std::max(least, step / kMostFitting);
  const double bins = std::max(std::ceil(distance / step - 0.5), 0.0);
  const double fitted = std::min(distance / (bins + 0.5), step);
  if (fitted >= least && distance > 0) return fitted;
  return least < step && off_middle(distance, least) < off_middle(distance, step) ? least : step;
}

// Scale and centre of one channel; false when float32 has no room for its steps.
bool scale_channel(const Sums& s, const NestedWish& wish, double absolute, double reach, const Grid& grid, float edge,
                   float usual, float& scale, float& centre, double& largest_eps) {
  double mean = 0.0, variance = s.squares / std::max(s.nonzero, 1.0);
  bool is_noise = false;
  if (wish.centred) {
    const double count = std::max(s.count, 1.0);
    mean = s.sum / count;
    variance = std::max(s.squares / count - mean * mean, 0.0);
    is_noise = variance <= kWellConditioned * (mean * mean) && s.count > 0;
  }
  const double rms = std::sqrt(variance);
  const bool is_flat = rms == 0.0;
  const double eps = is_flat ? absolute : std::min(wish.rel > 0 ? wish.rel * rms : absolute, 2.0 * rms);
  if (!is_flat && (eps < kSmallestEps || eps > kLargestEps)) return false;
  centre = static_cast<float>(mean);
  const bool is_moved = wish.edges || !std::isnan(usual);
  const double furthest = std::fabs(static_cast<double>(centre)) + (2.0 * reach + (is_moved ? 1.0 : 0.0)) * eps;
  const double slack = (grid.relative + kArithmetic) * furthest + grid.subnormal;
  const bool is_exact = is_noise || slack > 0.25 * eps || eps < kSmallestEps;
  const double step = is_exact ? kExactStep : 2.0 * (eps - slack);
  scale = few_bits(step);
  const bool has_edge = !is_exact && std::fabs(edge - mean) <= reach * step;
  const bool is_usual = !is_exact && std::fabs(usual - mean) <= reach * step;
  if (has_edge && is_usual)
    scale = few_bits(fitted_step(scale, std::fabs(static_cast<double>(usual) - edge), kUsualReach * rms / reach));
  if (has_edge)
    centre = centre_beside(edge, mean, scale);
  else if (is_usual)
    centre = centre_on(usual, mean, scale);
  largest_eps = std::max(largest_eps, is_exact ? kExactStep : eps);  // subnormals may lie within an exact step
  return true;
}

bool affine_code(const std::vector<Sums>& sums, const std::vector<Usual>& usual, const NestedWish& wish, double absolute, const Grid& grid,
                 ChosenCode& chosen) {
  NestedCode& code = chosen.code;
  code.flags = SLIMGRAD_AFFINE | (wish.centred ? SLIMGRAD_MIDDLE : 0);
  code.channels = wish.channels, code.inner = wish.inner;
  place_tables(chosen);
  chosen.eps = 0.0;
  const double reach = static_cast<double>(code.levels << code.rice);
  for (size_t c = 0; c < sums.size(); ++c)
    if (!scale_channel(sums[c], wish, absolute, reach, grid, wish.edges ? wish.edges[c] : NAN,
                       usual[c].most(), const_cast<float*>(code.scale)[c], const_cast<float*>(code.centre)[c], chosen.eps))
      return false;
  for (int k = 0; !code.rice && k <= code.levels; ++k) {
    const_cast<float*>(code.thresholds)[k] = static_cast<float>(k) + (wish.centred ? 0.5f : 0.0f);
    if (k < code.levels) const_cast<float*>(code.values)[k] = static_cast<float>(k) + (wish.centred ? 1.0f : 0.5f);
  }
  return true;
}

}  // namespace

void place_tables(ChosenCode& chosen) {
  NestedCode& code = chosen.code;
  const size_t channels = code.flags & SLIMGRAD_AFFINE ? static_cast<size_t>(code.channels) : 0;
  const size_t levels = code.rice ? 0 : static_cast<size_t>(code.levels);
  chosen.tables.assign(2 * channels + (levels ? 2 * levels + 1 : 0), 0.0f);
  const float* at = chosen.tables.data();
  code.scale = channels ? at : nullptr;
  code.centre = channels ? at + channels : nullptr;
  code.thresholds = levels ? at + 2 * channels : nullptr;
  code.values = levels ? at + 2 * channels + levels + 1 : nullptr;
}

bool choose_code(const void* x, int64_t n, const NestedWish& wish, ChosenCode& chosen) {
  const Grid grid = grid_of(wish.dtype);
  std::vector<Usual> usual(static_cast<size_t>(wish.channels));
  const std::vector<Sums> sums = sums_of(x, n, wish, usual);
  const double rms = overall_rms(sums, wish.centred);
  double eps = wish.rel > 0 ? wish.rel * rms : wish.absolute;
  if (rms == 0.0)
    eps = eps > 0 ? std::min(eps, grid.largest) : grid.tiny;
  else
    eps = rounded_down(std::min(eps, 2.0 * rms));
  if (!(eps > 0)) return false;
  chosen.code = {};
  chosen.code.dtype = wish.dtype;
  split(rms / (2.0 * eps), grid.reach, chosen.code);
  if (wish.centred || wish.channels > 1 || chosen.code.rice > 0) {
    if (affine_code(sums, usual, wish, eps, grid, chosen)) return true;
    if (wish.centred || (wish.channels > 1 && wish.rel > 0)) return false;
  }
  return grid_code(eps, wish.dtype, grid, chosen);
}

}  // namespace slimgrad
