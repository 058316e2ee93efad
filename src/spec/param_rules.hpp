// SPDX-License-Identifier: Apache-2.0
// The learning rate and weight decay of each parameter, and whether it is frozen: the deck's
// values, changed by its rules "pattern = value". By default vectors (norms, biases) do not decay.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/options.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// A value that holds after so many updates.
struct ValueAfter {
  int64_t updates;
  double value;

  bool operator==(const ValueAfter&) const = default;
};

struct ParamRule {
  double lr_factor = 1;
  double weight_decay = 0;
  int64_t frozen_updates = 0;        ///< it is frozen in the first updates
  int64_t frozen_after = INT64_MAX;  ///< and in all updates after so many
  /// The later values of lr_factor and weight_decay, ascending.
  std::vector<ValueAfter> later_lr_factors = {}, later_weight_decays = {};
  bool orthogonalizes = false;  ///< by Muon: matrices inside blocks and projectors
  int64_t state_block = 0;      ///< elements that share a scale of 8-bit states; 0: states are wide

  /// Updates count from 1.
  bool trains_at(int64_t update) const { return update > frozen_updates && update <= frozen_after; }
  bool trains_as(const ParamRule& other) const {
    return frozen_updates == other.frozen_updates && frozen_after == other.frozen_after;
  }
  double lr_factor_at(int64_t update) const;
  double weight_decay_at(int64_t update) const;

  bool operator==(const ParamRule&) const = default;
};

/// Parses "pattern = number", as in rules of adapters; nullopt where the text is none, or the
/// number is below 0.
struct PatternRule {
  std::string pattern;
  double value;
};
std::optional<PatternRule> parse_rule(const std::string& text);

/// A rule of [optim]: the value of some parameters, and the updates after which it begins.
struct ParamPattern {
  std::string pattern;
  double value;
  int64_t after = 0;
};
/// Parses "pattern = number" or "pattern = number from updates"; nullopt where the text is neither.
std::optional<ParamPattern> parse_param_rule(const std::string& text);
/// Returns the parameters that a pattern matches: a module, or names with *.
std::vector<size_t> matched_params(const ModelSpec& model, const std::string& pattern);

/// Returns whether `pattern`, in which * stands for any characters, matches the whole `name`.
bool matches(const std::string& pattern, const std::string& name);

/// Freezes the parameters that optim.frozen names without an update, if the units that read them
/// have no others: a unit trains as a whole or is frozen. Others have a rule.
void freeze_params(const OptimOptions& optim, ModelSpec& model);

/// Returns one rule per parameter of the model. Faults (a rule that is not "pattern = number", a
/// value below 0, a pattern that matches no parameter) are appended to `faults`.
std::vector<ParamRule> make_param_rules(const ModelSpec& model, const OptimOptions& optim,
                                        std::vector<std::string>& faults);

}  // namespace zea
