// SPDX-License-Identifier: Apache-2.0
// From one sample rate to another by a polyphase filter: with the rates' ratio in lowest terms,
// from : to, there are `to` different sets of weights, one for each position that an output can
// have between two inputs. They are made one at a time and used for all outputs of their phase, so
// that rates without a common divisor cost time and not memory. Outside the clip there is silence.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace zea {
namespace {

constexpr double kCrossings = 64;  ///< zero crossings of the sinc on each side
constexpr double kRolloff = 0.9475937167399596;
constexpr double kBeta = 14.769656459379492;
constexpr size_t kWindowSteps = 8192;  ///< linear between them: right to 3e-8

/// Half of the Kaiser window, from 1 at the middle to its edge.
class KaiserWindow {
 public:
  KaiserWindow() : values_(kWindowSteps + 2) {
    const double middle = std::cyl_bessel_i(0, kBeta);
    for (size_t i = 0; i <= kWindowSteps; ++i) {
      const double x = static_cast<double>(i) / kWindowSteps;
      values_[i] = std::cyl_bessel_i(0, kBeta * std::sqrt(1 - x * x)) / middle;
    }
  }
  /// For 0 <= x <= 1.
  double operator()(double x) const {
    const double position = x * kWindowSteps;
    const auto i = static_cast<size_t>(position);
    return values_[i] + (position - static_cast<double>(i)) * (values_[i + 1] - values_[i]);
  }

 private:
  std::vector<double> values_;
};

/// Weights of the inputs from `first` on, counted from the input at or before the output.
struct Phase {
  int64_t first = 0;
  std::vector<double> weights;
};

/// `fraction` of an input's time between that input and the output; `cutoff` as part of the
/// input's Nyquist frequency.
Phase phase_at(double fraction, double cutoff, const KaiserWindow& window) {
  const double reach = kCrossings / cutoff;
  Phase phase;
  phase.first = static_cast<int64_t>(std::ceil(fraction - reach));
  const auto last = static_cast<int64_t>(std::floor(fraction + reach));
  for (int64_t i = phase.first; i <= last; ++i) {
    const double time = std::abs(static_cast<double>(i) - fraction);
    const double angle = std::numbers::pi * cutoff * time;
    const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
    phase.weights.push_back(cutoff * sinc * window(std::min(time / reach, 1.0)));
  }
  return phase;
}

double dot(const double* weights, const float* samples, int64_t count) {
  std::array<double, 4> sums{};  // several, for one would wait for itself at every addition
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int64_t k = 0; k < 4; ++k) sums[static_cast<size_t>(k)] += weights[i + k] * samples[i + k];
  for (; i < count; ++i) sums[0] += weights[i] * samples[i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

/// The output at `position` + its phase's fraction, in inputs.
float apply(const Phase& phase, const std::vector<float>& samples, int64_t position) {
  const int64_t first = position + phase.first;
  const int64_t begin = std::max<int64_t>(first, 0);
  const int64_t end = std::min(first + static_cast<int64_t>(phase.weights.size()),
                               static_cast<int64_t>(samples.size()));
  if (begin >= end) return 0;
  return static_cast<float>(dot(&phase.weights[static_cast<size_t>(begin - first)],
                                &samples[static_cast<size_t>(begin)], end - begin));
}

}  // namespace

Audio resample(const Audio& audio, int64_t rate, int64_t max_samples) {
  ZEA_ASSERT(audio.rate > 0 && rate > 0 && max_samples >= 0);
  const auto inputs = static_cast<int64_t>(audio.samples.size());
  if (audio.rate == rate)
    return {rate, {audio.samples.begin(), audio.samples.begin() + std::min(inputs, max_samples)}};
  const int64_t divisor = std::gcd(audio.rate, rate);
  const int64_t from = audio.rate / divisor, to = rate / divisor;
  const int64_t outputs = std::min((inputs * to + from - 1) / from, max_samples);
  Audio result{rate, std::vector<float>(static_cast<size_t>(outputs))};
  const double cutoff =
      kRolloff * std::min(1.0, static_cast<double>(to) / static_cast<double>(from));
  const KaiserWindow window;
  for (int64_t p = 0; p < std::min(to, outputs); ++p) {
    const double fraction = static_cast<double>(p * from % to) / static_cast<double>(to);
    const Phase phase = phase_at(fraction, cutoff, window);
    for (int64_t output = p, position = p * from / to; output < outputs;
         output += to, position += from)
      result.samples[static_cast<size_t>(output)] = apply(phase, audio.samples, position);
  }
  return result;
}

}  // namespace zea
