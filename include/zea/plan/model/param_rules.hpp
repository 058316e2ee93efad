// SPDX-License-Identifier: Apache-2.0
// Learning rate and weight decay of each parameter, and whether it is frozen: the deck's values,
// changed by its rules "pattern = value". By default vectors (norms, biases) do not decay.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "zea/deck/options.hpp"
#include "zea/plan/model/model_spec.hpp"

namespace zea {

struct ParamRule {
  double lr_factor = 1;
  double weight_decay = 0;
  int64_t frozen_updates = 0;   ///< the first so many updates leave it as it is
  bool orthogonalises = false;  ///< Muon's: its tensor is a matrix inside a block or a projector
  int64_t state_block = 0;      ///< elements that share a scale of 8-bit states; 0: states are wide

  bool operator==(const ParamRule&) const = default;
};

/// What a text "pattern = number" says; none: it is not one, or the number is below 0.
struct PatternRule {
  std::string pattern;
  double value;
};
std::optional<PatternRule> parse_rule(const std::string& text);

/// Whether `pattern`, in which * stands for any characters, is all of `name`.
bool matches(const std::string& pattern, const std::string& name);

/// Makes parameters that optim.frozen names without a number of updates frozen ones of the model
/// where no unit that reads them has others: a unit trains as a whole or is frozen. The rest has a
/// rule.
void freeze_params(const OptimOptions& optim, ModelSpec& model);

/// One rule per parameter of the model. Faults (a rule that is not "pattern = number", a value
/// below 0, a pattern that matches no parameter) are appended to `faults`.
std::vector<ParamRule> make_param_rules(const ModelSpec& model, const OptimOptions& optim,
                                        std::vector<std::string>& faults);

}  // namespace zea
