// SPDX-License-Identifier: Apache-2.0
// The loads of experts: the number of rows of each expert of a layer in a step, over all ranks.
// Routing is the same on every layout, so the loads are, too. The log shows how even they are, and
// the selection biases of experts are updated by them (optim.router_bias_update_rate).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/engine.hpp"

namespace zea {

class ExpertLoads {
 public:
  explicit ExpertLoads(Engine& engine);

  /// Returns this rank's rows in a step (EngineResult::expert_offsets): those of the first layer's
  /// experts, then those of the next. Summed over all ranks they are the loads.
  std::vector<double> own_rows(const std::map<int, std::vector<at::Tensor>>& expert_offsets) const;

  int64_t layers() const { return std::ssize(layers_); }
  /// Returns for each layer, by its unit's name, the loads of its experts; `pooled`: the sums over
  /// all layers, which have equally many experts then.
  std::map<std::string, std::vector<double>> by_layer(const std::vector<double>& loads,
                                                      bool pooled) const;

  /// The load of a layer's fullest expert over the mean of its experts, by the unit's name.
  using Imbalance = std::vector<std::pair<std::string, double>>;
  Imbalance imbalance(const std::vector<double>& loads) const;

  /// Adds the rate, with the sign of the layer's mean load minus the expert's, to every selection
  /// bias (arXiv:2408.15664).
  void update_biases(const std::vector<double>& loads) const;

 private:
  struct Layer {
    int unit;
    int64_t experts;
    int64_t first;  ///< of its experts in the loads
  };

  Engine& engine_;
  std::vector<Layer> layers_;
  int64_t experts_ = 0;  ///< of all layers
};

}  // namespace zea
