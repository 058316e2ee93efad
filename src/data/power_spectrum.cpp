// SPDX-License-Identifier: Apache-2.0
// The transform in two steps (Cooley and Tukey): with 400 = 20 x 20, n = 20 a + b and
// k = c + 20 d, X(k) = sum over b of w^(b k) S(c, b), where S(c, b) = sum over a of
// w^(20 a c) x(20 a + b). Input is real, so that S(20 - c, b) is the conjugate of S(c, b).
#include "data/audio.hpp"

#include <numbers>

namespace zea {
namespace {

constexpr size_t kSide = 20;
static_assert(kSide * kSide == kFrame);

struct ComplexLanes {
  Lanes real{}, imaginary{};
};

/// S(c, b), for 0 <= c <= kSide / 2.
using Sums = std::array<std::array<ComplexLanes, kSide>, kSide / 2 + 1>;

void sum_strided(const std::array<Lanes, kFrame>& frames,
                 const std::vector<std::complex<double>>& roots, Sums& sums) {
  for (size_t c = 0; c < sums.size(); ++c)
    for (size_t b = 0; b < kSide; ++b) {
      ComplexLanes sum;
      for (size_t a = 0; a < kSide; ++a) {
        const std::complex<double> root = roots[kSide * a * c % kFrame];
        const Lanes& value = frames[kSide * a + b];
        for (size_t lane = 0; lane < kLanes; ++lane) {
          sum.real[lane] += root.real() * value[lane];
          sum.imaginary[lane] += root.imag() * value[lane];
        }
      }
      sums[c][b] = sum;
    }
}

}  // namespace

PowerSpectrum::PowerSpectrum() : roots_(kFrame) {
  for (size_t n = 0; n < kFrame; ++n)
    roots_[n] = std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(n) / kFrame);
}

void PowerSpectrum::operator()(const std::array<Lanes, kFrame>& frames,
                               std::array<Lanes, kBins>& power) const {
  Sums sums;
  sum_strided(frames, roots_, sums);
  for (size_t k = 0; k < kBins; ++k) {
    const size_t c = k % kSide;
    const bool conjugate = c > kSide / 2;
    const auto& row = sums[conjugate ? kSide - c : c];
    ComplexLanes sum;
    for (size_t b = 0; b < kSide; ++b) {
      const std::complex<double> root = roots_[b * k % kFrame];
      // x conj(s) has the magnitude of conj(x) s, and that is all that is wanted.
      const double real = root.real(), imaginary = conjugate ? -root.imag() : root.imag();
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const double s = row[b].real[lane], t = row[b].imaginary[lane];
        sum.real[lane] += real * s - imaginary * t;
        sum.imaginary[lane] += real * t + imaginary * s;
      }
    }
    for (size_t lane = 0; lane < kLanes; ++lane)
      power[k][lane] = sum.real[lane] * sum.real[lane] + sum.imaginary[lane] * sum.imaginary[lane];
  }
}

}  // namespace zea
