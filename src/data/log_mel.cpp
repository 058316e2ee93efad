// SPDX-License-Identifier: Apache-2.0
// Log-mel features: frames of 400 samples under a Hann window, one every 160, centred on their
// column (the clip is mirrored at its two ends); the power of each in triangular bands that are
// spaced evenly on Slaney's mel scale, each of area 1; log10, cut off 8 below the maximum of the
// clip; (x + 4) / 4. Computed in double precision, which transformers does in single.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace zea {
namespace {

constexpr double kSmallestPower = 1e-10;
constexpr double kDepth = 8;  ///< in powers of ten: what lies deeper below the maximum is cut off

/// Slaney's scale: linear below 1000 Hz, which is mel 15, logarithmic above.
constexpr double kLinearMel = 15, kLinearHertz = 1000;
const double kLogStep = std::log(6.4) / 27;

double mel_of(double hertz) {
  return hertz < kLinearHertz ? hertz * kLinearMel / kLinearHertz
                              : kLinearMel + std::log(hertz / kLinearHertz) / kLogStep;
}

double hertz_of(double mel) {
  return mel < kLinearMel ? mel * kLinearHertz / kLinearMel
                          : kLinearHertz * std::exp(kLogStep * (mel - kLinearMel));
}

/// Weights of the frequencies from `first` on; none where no frequency falls into the band.
struct Band {
  size_t first = 0;
  std::vector<double> weights;
};

/// The triangle from `low` to `high` with its top at `centre`, in Hz.
Band band_of(double low, double centre, double high) {
  Band band;
  for (size_t bin = 0; bin < kBins; ++bin) {
    const double hertz = static_cast<double>(bin) * kMelRate / kFrame;
    const double height =
        std::min((hertz - low) / (centre - low), (high - hertz) / (high - centre));
    if (height <= 0) continue;
    if (band.weights.empty()) band.first = bin;
    band.weights.push_back(height * 2 / (high - low));
  }
  return band;
}

std::vector<Band> make_bands(int64_t count) {
  const double highest = mel_of(kMelRate / 2.0);
  const auto edge = [&](int64_t i) {
    return hertz_of(highest * static_cast<double>(i) / static_cast<double>(count + 1));
  };
  std::vector<Band> bands;
  for (int64_t i = 0; i < count; ++i) bands.push_back(band_of(edge(i), edge(i + 1), edge(i + 2)));
  return bands;
}

std::array<double, kFrame> hann_window() {
  std::array<double, kFrame> window{};
  for (size_t n = 0; n < kFrame; ++n)
    window[n] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / kFrame);
  return window;
}

/// The sample at `position` of a clip that is cut to `length`, silent after the `samples` that
/// there are, and mirrored at its first and last sample.
double sample_at(std::span<const float> samples, int64_t position, int64_t length) {
  position = std::abs(position);
  if (position >= length) position = 2 * length - 2 - position;
  const bool is_there = position >= 0 && position < std::ssize(samples);
  return is_there ? samples[static_cast<size_t>(position)] : 0;
}

double logarithm_of(const Band& band, const std::array<Lanes, kBins>& power, size_t lane) {
  double sum = 0;
  for (size_t i = 0; i < band.weights.size(); ++i)
    sum += band.weights[i] * power[band.first + i][lane];
  return std::log10(std::max(sum, kSmallestPower));
}

}  // namespace

int64_t mel_columns(int64_t samples, int64_t rate, MelKind kind) {
  const int64_t resampled = (samples * kMelRate + rate - 1) / rate;
  if (kind == MelKind::Usm) return usm_columns(resampled);
  // Reflection padding needs a clip that is longer than half a frame.
  if (kind == MelKind::Unpadded) return resampled > int64_t{kFrame / 2} ? resampled / kMelHop : 0;
  return (resampled + kMelHop - 1) / kMelHop;
}

struct LogMel::Tables {
  explicit Tables(int64_t mel_bins) : bands(make_bands(mel_bins)) {}

  std::array<double, kFrame> window = hann_window();
  std::vector<Band> bands;
  PowerSpectrum spectrum;

  /// The frames of `column` and those after it, `lanes` in all, under the window.
  void put_frames(std::span<const float> samples, int64_t column, int64_t length, size_t lanes,
                  std::array<Lanes, kFrame>& frames) const {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const int64_t begin = (column + static_cast<int64_t>(lane)) * kMelHop - int64_t{kFrame / 2};
      for (size_t n = 0; n < kFrame; ++n)
        frames[n][lane] = window[n] * sample_at(samples, begin + static_cast<int64_t>(n), length);
    }
  }
};

LogMel::LogMel(const AudioOptions& options)
    : options_(options),
      tables_(std::make_unique<Tables>(options.mel_bins)),
      usm_(options.kind == MelKind::Usm ? std::make_unique<UsmMel>(options.mel_bins) : nullptr) {
  ZEA_ASSERT(options.mel_bins > 0 && options.max_source_positions > 0);
}

LogMel::~LogMel() = default;

/// Puts the logarithms of the first `columns`; returns the maximum of all.
double LogMel::put_logarithms(std::span<const float> samples, float* target,
                              int64_t columns) const {
  const bool is_alone = options_.kind == MelKind::Unpadded;
  const int64_t length = is_alone ? std::ssize(samples) : options_.samples();
  const int64_t all = is_alone ? length / kMelHop : options_.columns();
  const double silence = std::log10(kSmallestPower);
  std::fill_n(target, options_.mel_bins * columns, static_cast<float>(silence));
  double maximum = silence;
  std::array<Lanes, kFrame> frames{};
  std::array<Lanes, kBins> power;
  for (int64_t column = 0; column < all; column += kLanes) {
    // From here on frames are silent, the mirrored ones, too.
    if (column * kMelHop - int64_t{kFrame / 2} >= static_cast<int64_t>(samples.size())) break;
    const auto lanes = static_cast<size_t>(std::min<int64_t>(kLanes, all - column));
    tables_->put_frames(samples, column, length, lanes, frames);
    tables_->spectrum(frames, power);
    for (size_t band = 0; band < tables_->bands.size(); ++band)
      for (size_t lane = 0; lane < lanes; ++lane) {
        const double value = logarithm_of(tables_->bands[band], power, lane);
        maximum = std::max(maximum, value);
        if (column + static_cast<int64_t>(lane) >= columns) continue;
        target[static_cast<int64_t>(band) * columns + column + static_cast<int64_t>(lane)] =
            static_cast<float>(value);
      }
  }
  return maximum;
}

void LogMel::operator()(const Audio& audio, float* target, int64_t columns) const {
  // The last column of an unpadded clip sees all samples before the next one.
  const int64_t most = options_.samples() + (options_.kind == MelKind::Unpadded ? kMelHop - 1 : 0);
  const Audio resampled = audio.rate == kMelRate ? Audio{} : resample(audio, kMelRate, most);
  const std::span<const float> samples = audio.rate == kMelRate ? audio.samples : resampled.samples;
  if (usm_) {
    const size_t heard = std::min(samples.size(), static_cast<size_t>(most));
    return (*usm_)(samples.first(heard), columns, target);
  }
  const auto floor = static_cast<float>(put_logarithms(samples, target, columns) - kDepth);
  for (int64_t i = 0; i < options_.mel_bins * columns; ++i)
    target[i] = (std::max(target[i], floor) + 4) / 4;
}

}  // namespace zea
