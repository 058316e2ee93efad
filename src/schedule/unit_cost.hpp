// SPDX-License-Identifier: Apache-2.0
// The cost of each unit, estimated from shapes or measured. Frozen units are costed without weight
// gradients, and without gradients of inputs where nothing upstream trains.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/model_spec.hpp"
#include "spec/operation_needs.hpp"

namespace zea {

/// The cost of one unit in one microbatch: seconds if measured, multiplications if estimated.
struct UnitCost {
  double forward = 0;
  double backward_input = 0;   ///< gradients of inputs
  double backward_weight = 0;  ///< gradients of weights
  int64_t bytes = 0;           ///< parameters, gradients and optimizer state of one rank

  double backward() const { return backward_input + backward_weight; }
  double total() const { return forward + backward(); }
};

/// Returns the costs of a step in which only the trainable parts of `model` train; `plain` are
/// measured or estimated as if everything trained.
std::vector<UnitCost> frozen_aware(const ModelSpec& model, const std::vector<UnitCost>& plain);

/// Returns the costs of a training step, in which units whose outputs are read with the samples
/// (ModelSpec::is_cached) compute nothing.
std::vector<UnitCost> without_cached(const ModelSpec& model, std::vector<UnitCost> costs);

/// Multiplications of each unit for a microbatch of `rows` rows of `row_tokens` of text, each one
/// sample, with as many items as fit: no row attends to another.
std::vector<UnitCost> estimated_costs(const ModelSpec& model, int64_t row_tokens, int64_t rows = 1);

/// The rows of an encoder's unit for so many items, and the pairs of a query and a key that a block
/// attends to.
detail::UnitSizes sizes_of_items(const EncoderSpec& encoder, const ItemShape& item, int64_t count);
double pairs_of_items(const ModelSpec& model, const UnitSpec& unit, const ItemShape& item,
                      int64_t count);

/// The work of a unit: the part of its rows, and the part of each query-key pair.
struct UnitWork {
  UnitCost rows, pair;

  double total(double pairs) const { return rows.total() + pairs * pair.total(); }
};

/// Multiplications of a unit as if all of it trained. Each element of a weight is multiplied once
/// per row, in forward and for the gradients of input and weight; attention multiplies twice for
/// each pair and element of the queries, a gated delta rule three times for each row and element of
/// its states, and both twice as much in backward. An element that is only copied or scaled counts
/// once.
UnitWork unit_work(const ModelSpec& model, const UnitSpec& unit, const detail::UnitSizes& sizes);

/// Model FLOPs of a unit, by which MFU is defined (PaLM, arXiv:2204.02311, appendix B): GEMMs with
/// weights, attention's two over the pairs that its mask shows, and the three of each row with the
/// states of a gated delta rule, in forward and, where something that trains needs them, for the
/// gradients of inputs and weights. A multiplication with an
/// addition is two. Norms, activations, biases, look-ups, dropout, the optimizer and recomputation
/// do not count, nor do units whose outputs are read with the samples (ModelSpec::is_cached).
/// `gradients`: of each unit of the model, whether its output has one.
UnitWork unit_flops(const ModelSpec& model, int unit, const detail::UnitSizes& sizes,
                    const std::vector<bool>& gradients);

/// The settings under which costs were measured: data.row_tokens, data.rows_per_microbatch,
/// precision.preset and run.device.
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
