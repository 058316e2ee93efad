// SPDX-License-Identifier: Apache-2.0
// A run-time unit: a unit kind's forward function over its parameters, its inputs and the
// microbatch. Written as for one device: it knows neither ranks nor schedules, and what several
// ranks share it leaves to Layers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/layers.hpp"
#include "model/microbatch.hpp"
#include "model/parameter.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Inputs in the order of UnitSpec::inputs; an absent optional input is nullopt, never an empty
/// tensor.
using UnitInputs = std::vector<std::optional<at::Tensor>>;

/// The output of the head.
enum class HeadOutput {
  Loss,         ///< sum over targets, a double scalar
  LastLogits,   ///< (samples, vocabulary) after each sample's last token
  TargetLogits  ///< (targets, vocabulary), for tests against a reference
};

/// The outputs of a unit in a microbatch.
struct UnitOutput {
  /// (rows here, hidden) for the units that read it, or the head's logits; undefined: nothing.
  at::Tensor value;
  /// A term of the loss, a scalar summed over this rank's tokens (as a router's may be) and the
  /// same on all tp ranks; undefined: none. That of the head is all it makes of HeadOutput::Loss.
  at::Tensor loss;
  /// A mixture's ends (DispatchedRows) of the rows of this rank's experts; undefined: it is no
  /// mixture.
  at::Tensor expert_offsets = {};
  /// The cross entropy of the tokens after the next, which is in the head's loss times
  /// DecoderSpec::mtp_loss; undefined: none.
  at::Tensor mtp_loss = {};
};

/// The arguments of a unit's forward; its backward reads them, too.
struct UnitArguments {
  const ModelSpec& model;
  const UnitSpec& unit;
  /// In the order of the unit's spec; a fused parameter appears once.
  const std::vector<Parameter*>& parameters;
  const UnitInputs& inputs;
  const Microbatch& microbatch;
  HeadOutput head;
  const Layers& layers;
  /// Whether outputs of norms and activations that only linears read are freed after these, and
  /// recomputed in backward (spec/recomputed_values.hpp).
  bool is_selective = false;

  int unit_index() const { return static_cast<int>(&unit - model.units.data()); }
};

UnitOutput run_unit(const UnitArguments& call);
using RunUnit = std::function<decltype(run_unit)>;

/// A unit with random parameters of its own, to be measured alone.
class LoneUnit {
 public:
  /// `options` of its parameters; their gradients are of type `gradient`.
  LoneUnit(const ModelSpec& model, const UnitSpec& unit, const at::TensorOptions& options,
           at::ScalarType gradient);

  /// The output, or the loss of a head.
  at::Tensor output(const UnitInputs& inputs, const Microbatch& microbatch,
                    bool is_selective = false) const;
  const std::vector<Parameter*>& parameters() const { return parameters_; }

 private:
  const ModelSpec& model_;
  const UnitSpec& unit_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> parameters_;
};

}  // namespace zea
