// SPDX-License-Identifier: Apache-2.0
// What each unit costs: estimated from shapes or measured, and then what counts of it. Frozen units
// are priced as what they cost: no backward where nothing upstream trains, the gradient of inputs
// only where frozen units stand downstream of trainable ones, both otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

/// Of one unit in one microbatch, in any one unit of time (seconds where they were measured,
/// multiplications where they were estimated).
struct UnitCost {
  double forward = 0;
  double backward_input = 0;   ///< gradients of inputs
  double backward_weight = 0;  ///< gradients of weights
  int64_t bytes = 0;           ///< parameters, gradients and optimizer state of one rank

  double backward() const { return backward_input + backward_weight; }
  double total() const { return forward + backward(); }
};

/// The costs that count while the parts of `model` train that do: of measured or estimated ones.
/// `plain` costs are those of a model in which everything trains.
std::vector<UnitCost> frozen_aware(const ModelSpec& model, const std::vector<UnitCost>& plain);

/// The costs of a step that trains, in which units whose outputs are read with the samples
/// (ModelSpec::is_cached) compute nothing.
std::vector<UnitCost> without_cached(const ModelSpec& model, std::vector<UnitCost> costs);

/// Multiplications of each unit for a microbatch of so many rows of `row_tokens` of text, each one
/// sample, with as many items as fit: no row attends to another.
std::vector<UnitCost> estimated_costs(const ModelSpec& model, int64_t row_tokens, int64_t rows = 1);

/// The same of one item of each encoder with so many times the tokens of its usual one (tiles,
/// where it has several); 0 of what is the decoder's.
std::vector<UnitCost> item_costs(const ModelSpec& model, int64_t times);

/// What costs were measured with: data.row_tokens, data.rows_per_microbatch, precision.preset and
/// run.device.
struct ProfileConditions {
  int64_t row_tokens = 0, rows_per_microbatch = 0;
  std::string precision, device;
};

/// Measured `costs` of all units (seconds on one rank, with everything trained) as the text of a
/// file, and back. Reading throws PlanError where `text`, which `source` holds, is no such file or
/// lacks a unit of the model, and adds to `notes` in what it was measured otherwise than `now`.
std::string profile_json(const ModelSpec& model, const std::vector<UnitCost>& costs,
                         const ProfileConditions& conditions);
std::vector<UnitCost> measured_costs(const ModelSpec& model, const std::string& text,
                                     const std::string& source, const ProfileConditions& now,
                                     std::vector<std::string>& notes);

}  // namespace zea
