// SPDX-License-Identifier: Apache-2.0
// The cost of a sample to the ranks that work on it, from its counts alone: tokens, their square in
// attention, targets and items of each encoder, weighted by the model's shapes and trainable parts.
// Modules on separate ranks have separate costs, because they work at the same time.
#pragma once

#include <vector>

#include "layout/axis.hpp"
#include "layout/sample_index.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// The cost of an item of an encoder.
struct ItemCost {
  double usual = 0;         ///< of the encoder's usual shape
  double pairs = 0;         ///< the part of this that grows with the square of the tokens
  double usual_tokens = 0;  ///< 0: every item costs the same

  ItemCost(double every = 0) : usual(every) {}
  double of(const ItemShape& shape) const;
  bool operator==(const ItemCost&) const = default;
};

/// The cost of attention with a window.
struct WindowCost {
  int64_t window;
  double pair;  ///< of a token with one that it attends to

  bool operator==(const WindowCost&) const = default;
};

/// Multiplications, or seconds, of each rank of some modules; by default each token costs 1.
struct SampleCosts {
  double token = 1;
  double pair = 0;  ///< of a token with one that it attends to, without a window
  double target = 0;
  std::vector<ItemCost> items = {};  ///< of each encoder
  std::vector<WindowCost> windows = {};

  /// Adds the cost of a pair under `window` (0: without one).
  void add_pair(int64_t window, double cost);
  bool operator==(const SampleCosts&) const = default;
};

/// Returns the costs on each set of ranks of a replica: modules that share ranks have one entry. If
/// `known`, the measured costs of all units in a microbatch of full rows on the ranks of a stage,
/// is given, estimates from shapes are scaled by them.
std::vector<SampleCosts> sample_costs(const ModelSpec& model, const MeshShape& mesh,
                                      const std::vector<UnitCost>& known = {},
                                      int64_t row_tokens = 0, int64_t rows = 1);

/// Model FLOPs (unit_cost.hpp) of a training step as costs, of all units; read by sample_cost().
/// `bidirectional_images`: the blocks with bidirectional attention inside images. Exact for samples
/// of text; adjacent images count as separate ones, items by their tokens, and those of an encoder
/// with windows as if each window were full.
SampleCosts model_flops(const ModelSpec& model, BidirectionalLayers bidirectional_images);

double sample_cost(const SampleIndex& sample, const SampleCosts& costs);
/// Returns the same where each token of the language model attends to all of its sample, as
/// torchtitan counts: causal masks and windows hide half of the pairs, or more. With
/// bidirectional attention inside images, pairs with later features count twice.
double unmasked_cost(const SampleIndex& sample, const SampleCosts& costs);

}  // namespace zea
