// SPDX-License-Identifier: Apache-2.0
// Bounds for bf16 on several ranks against fp64: a layout rounds as one rank does and, where it
// splits a sum, rounds each part before they are added: at most three roundings for one, of
// independent signs, so that errors grow by less than sqrt(3). The bound is twice the error of one
// rank, plus one unit of the last place of bf16 in case that error is small by chance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace zea::testing {

inline constexpr double kBf16Eps = 0x1p-8;

inline double allowed_in_bf16(double error_of_one_rank, double size) {
  return 2 * error_of_one_rank + kBf16Eps * size;
}

inline double largest_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// One number of each step, of a layout and of one rank in bf16 and of one rank in fp64.
inline void expect_near_in_bf16(const std::vector<double>& got, const std::vector<double>& one_rank,
                                const std::vector<double>& exact) {
  ASSERT_EQ(got.size(), exact.size());
  const double error = largest_distance(one_rank, exact);
  for (size_t step = 0; step < exact.size(); ++step)
    EXPECT_NEAR(got[step], exact[step], allowed_in_bf16(error, std::abs(exact[step])))
        << "step " << step;
}

/// Returns the error of all tensors together, relative to the exact ones, in the 2-norm.
template <class Tensors>
double relative_error(const Tensors& got, const Tensors& exact) {
  double error = 0, size = 0;
  for (const auto& [name, values] : exact)
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(got.at(name)[i] - values[i], 2);
      size += std::pow(values[i], 2);
    }
  return std::sqrt(error / size);
}

/// All gradients of a step, as expect_near_in_bf16().
template <class Tensors>
void expect_gradients_near_in_bf16(const Tensors& got, const Tensors& one_rank,
                                   const Tensors& exact) {
  EXPECT_LE(relative_error(got, exact), allowed_in_bf16(relative_error(one_rank, exact), 1));
}

}  // namespace zea::testing
