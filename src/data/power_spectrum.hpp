// SPDX-License-Identifier: Apache-2.0
// Squared magnitudes of the discrete Fourier transform of real frames, several frames at a time,
// one in each lane of a vector.
#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <vector>

namespace zea {

constexpr size_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

constexpr size_t kFrame = 400;            ///< samples
constexpr size_t kBins = kFrame / 2 + 1;  ///< frequencies from 0 to the Nyquist frequency

class PowerSpectrum {
 public:
  PowerSpectrum();
  void operator()(const std::array<Lanes, kFrame>& frames, std::array<Lanes, kBins>& power) const;

 private:
  std::vector<std::complex<double>> roots_;  ///< exp(-2 pi i n / kFrame)
};

}  // namespace zea
