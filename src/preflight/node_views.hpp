// SPDX-License-Identifier: Apache-2.0
// What was measured, node by node.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zea/preflight/measurements.hpp"

namespace zea {

struct NodeView {
  std::vector<const RankFacts*> ranks;  ///< never empty
  const RankFacts& first() const { return *ranks.front(); }
  const std::string& name() const { return first().name; }
};
std::vector<NodeView> views_of(const Measurements& measured);

/// Of values above 0; 0 without any.
double median_of(std::vector<double> values);

/// For every node the rate of its ranks among each other; 0: one rank alone.
std::vector<double> rates_inside(const Measurements& measured);
/// For every node the best of the pairs that it is in: one that is slow in all of them is slow
/// itself. 0 on a job of one node.
std::vector<double> rates_across(const Measurements& measured);

/// "12.3 GiB"; "?" of a negative number.
std::string gib_text(int64_t bytes);
/// "21.4 GB/s"; "-" of 0.
std::string rate_text(double rate);
/// With two digits behind the point.
std::string decimal_text(double value);

}  // namespace zea
