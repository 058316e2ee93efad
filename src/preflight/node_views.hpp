// SPDX-License-Identifier: Apache-2.0
// What was measured, node by node.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "preflight/measurements.hpp"

namespace zea {

/// A tensor that is summed over GPUs, and room for some of its size and for what NCCL takes.
inline constexpr int64_t kSummedGpuBytes = int64_t{256} << 20;
inline constexpr int64_t kLeastGpuRoomBytes = 8 * kSummedGpuBytes;

struct NodeView {
  std::vector<const RankFacts*> ranks;  ///< never empty
  const RankFacts& first() const { return *ranks.front(); }
  const std::string& name() const { return first().name; }
};
std::vector<NodeView> views_of(const Measurements& measured);

/// Whether somebody else holds more of a GPU's memory than CUDA itself or a desktop takes.
bool is_gpu_taken(const RankFacts& rank);
/// Whether sums between GPUs can be measured: every rank has one with room for what is summed. One
/// rank without would leave the others waiting.
bool can_sum_on_gpus(const std::vector<RankFacts>& ranks);

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
