// SPDX-License-Identifier: Apache-2.0
// Log-mel features of USM. Frames of 320 samples under a periodic Hann window begin every 160
// samples, the first one 160 samples before the clip. The magnitudes of a 512-point FFT are summed
// in triangular bands, evenly spaced on HTK's mel scale up to 8 kHz; a feature is the logarithm of
// this sum plus a floor. A column needs its frame and one more sample. zea computes in double
// precision, transformers in single.
#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace zea {
namespace {

constexpr int64_t kUsmFrame = 320, kUsmBefore = kUsmFrame / 2;
constexpr size_t kUsmTransform = 512, kUsmBins = kUsmTransform / 2 + 1;
constexpr double kUsmFloor = 1e-3, kUsmHighest = 8000;

double htk_mel(double hertz) {
  return 2595 * std::log10(1 + hertz / 700);
}
double htk_hertz(double mel) {
  return 700 * (std::pow(10, mel / 2595) - 1);
}

using Spectrum = std::array<std::complex<double>, kUsmTransform>;

/// exp(-2 pi i n / kUsmTransform).
std::vector<std::complex<double>> make_roots() {
  std::vector<std::complex<double>> roots;
  for (size_t n = 0; n < kUsmTransform / 2; ++n)
    roots.push_back(
        std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(n) / kUsmTransform));
  return roots;
}

/// The discrete Fourier transform, in place, by halves (Cooley and Tukey).
void transform(const std::vector<std::complex<double>>& roots, Spectrum& x) {
  for (size_t i = 1, j = 0; i < kUsmTransform; ++i) {
    size_t bit = kUsmTransform / 2;
    for (; j & bit; bit /= 2) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (size_t length = 2; length <= kUsmTransform; length *= 2) {
    const size_t half = length / 2, stride = kUsmTransform / length;
    for (size_t begin = 0; begin < kUsmTransform; begin += length)
      for (size_t k = 0; k < half; ++k) {
        const std::complex<double>&root = roots[k * stride], odd = x[begin + half + k];
        // By parts: the product of std::complex also looks for infinities.
        const std::complex<double> turned(root.real() * odd.real() - root.imag() * odd.imag(),
                                          root.real() * odd.imag() + root.imag() * odd.real());
        x[begin + half + k] = x[begin + k] - turned;
        x[begin + k] += turned;
      }
  }
}

}  // namespace

int64_t usm_columns(int64_t samples) {
  const int64_t beyond = samples + kUsmBefore - (kUsmFrame + 1);
  return beyond < 0 ? 0 : beyond / kMelHop + 1;
}

struct UsmMel::Tables {
  explicit Tables(int64_t count) {
    for (int64_t n = 0; n < kUsmFrame; ++n)
      window.push_back(static_cast<float>(
          0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(n) / kUsmFrame)));
    const double highest = htk_mel(kUsmHighest);
    const auto edge = [&](int64_t i) {
      return htk_hertz(highest * static_cast<double>(i) / static_cast<double>(count + 1));
    };
    for (int64_t i = 0; i < count; ++i) {
      std::vector<double>& band = bands.emplace_back();
      for (size_t bin = 0; bin < kUsmBins; ++bin) {
        const double hertz = static_cast<double>(bin) * kMelRate / kUsmTransform;
        const double rising = (hertz - edge(i)) / (edge(i + 1) - edge(i)),
                     falling = (edge(i + 2) - hertz) / (edge(i + 2) - edge(i + 1));
        band.push_back(std::max(0.0, std::min(rising, falling)));
      }
    }
  }

  std::vector<float> window;  ///< rounded, as transformers has it
  std::vector<std::vector<double>> bands;
  std::vector<std::complex<double>> roots = make_roots();
};

UsmMel::UsmMel(int64_t mel_bins) : tables_(std::make_unique<Tables>(mel_bins)) {}

UsmMel::~UsmMel() = default;

void UsmMel::operator()(std::span<const float> samples, int64_t columns, float* target) const {
  std::fill_n(target, std::ssize(tables_->bands) * columns, 0.0F);
  const int64_t here = usm_columns(std::ssize(samples));
  ZEA_ASSERT(here <= columns);
  Spectrum spectrum;
  std::array<double, kUsmBins> magnitude;
  for (int64_t column = 0; column < here; ++column) {
    spectrum.fill(0);
    const int64_t begin = column * kMelHop - kUsmBefore;
    for (int64_t n = std::max<int64_t>(0, -begin); n < kUsmFrame; ++n)
      spectrum[static_cast<size_t>(n)] =
          static_cast<double>(samples[static_cast<size_t>(begin + n)]) *
          tables_->window[static_cast<size_t>(n)];
    transform(tables_->roots, spectrum);
    for (size_t bin = 0; bin < kUsmBins; ++bin)
      magnitude[bin] = std::hypot(spectrum[bin].real(), spectrum[bin].imag());
    for (size_t band = 0; band < tables_->bands.size(); ++band) {
      double sum = 0;
      for (size_t bin = 0; bin < kUsmBins; ++bin) sum += tables_->bands[band][bin] * magnitude[bin];
      target[static_cast<int64_t>(band) * columns + column] =
          static_cast<float>(std::log(sum + kUsmFloor));
    }
  }
}

}  // namespace zea
