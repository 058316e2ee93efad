// SPDX-License-Identifier: Apache-2.0
// A whole small training run in memory, on any communicator and layout: what the layout tests
// compare.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "zea/comm/mesh.hpp"
#include "zea/data/memory_dataset.hpp"
#include "zea/io/weights_source.hpp"
#include "zea/plan/plan.hpp"
#include "zea/train/train_step.hpp"

namespace zea::testing {

/// A run's result: losses and gradient norms of each step, every weight afterwards, and the
/// ledger's peak.
struct TinyResult {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::vector<double>> weights;
  int64_t peak_bytes = 0;
};

struct TinyRunOptions {
  Options deck;
  std::string config_json;
  int64_t steps = 10;
  uint64_t weights_seed = 1;
  std::function<void(Plan&)> adjust;  ///< of the plan, for what no deck can ask for here
};

/// Trains on `dataset` on all ranks of `world`. Collective.
TinyResult run_tiny(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options);

/// Samples with `images` (a repeating pattern of images per sample) of random pixels, random text
/// of varied length and loss on its last part. Features per image must match the model.
MemoryDataset make_tiny_dataset(const ModelSpec& model, int64_t samples,
                                const std::vector<int>& images, uint64_t seed);

/// Largest absolute difference; infinity when names or sizes differ.
double max_difference(const std::map<std::string, std::vector<double>>& a,
                      const std::map<std::string, std::vector<double>>& b);

}  // namespace zea::testing
