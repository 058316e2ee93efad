// SPDX-License-Identifier: Apache-2.0
#include "spec/item_spec.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zea {
namespace {

/// Keys' cubic kernel with a = -0.5.
double bicubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * -0.5;
  return 0;
}

double bilinear(double x) {
  return std::max(0.0, 1 - std::abs(x));
}

/// A sinc of three lobes, windowed by a sinc three times as wide.
double lanczos(double x) {
  constexpr double kLobes = 3;
  const auto sinc = [](double at) {
    const double turn = std::numbers::pi * at;
    return at == 0 ? 1 : std::sin(turn) / turn;
  };
  return std::abs(x) < kLobes ? sinc(x) * sinc(x / kLobes) : 0;
}

/// The weight of a source value by its distance from a target value: zero from `reach` on.
struct Kernel {
  double (*weight)(double);
  double reach;
};

Kernel kernel_of(Resampling resampling) {
  switch (resampling) {
    case Resampling::Bicubic:
      return {bicubic, 2};
    case Resampling::Bilinear:
      return {bilinear, 1};
    case Resampling::Lanczos:
      return {lanczos, 3};
  }
  return {bicubic, 2};
}

}  // namespace

SourceWeights source_weights(int64_t target, int64_t source_size, int64_t target_size,
                             Resampling resampling) {
  const Kernel kernel = kernel_of(resampling);
  const double scale = static_cast<double>(source_size) / static_cast<double>(target_size);
  const double stretch = std::max(scale, 1.0);
  const double reach = kernel.reach * stretch;
  const double center = (static_cast<double>(target) + 0.5) * scale;
  SourceWeights found;
  found.first = std::max<int64_t>(0, static_cast<int64_t>(std::floor(center - reach + 0.5)));
  const auto end = std::min(source_size, static_cast<int64_t>(std::floor(center + reach + 0.5)));
  double sum = 0;
  for (int64_t x = found.first; x < end; ++x) {
    found.weights.push_back(
        kernel.weight((static_cast<double>(x) - center + 0.5) * (1.0 / stretch)));
    sum += found.weights.back();
  }
  for (double& weight : found.weights) weight /= sum;
  return found;
}

}  // namespace zea
