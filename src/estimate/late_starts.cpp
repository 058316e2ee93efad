// SPDX-License-Identifier: Apache-2.0
#include "estimate/late_starts.hpp"

#include <set>
#include <vector>

namespace zea {
namespace {

/// Names of what a run has trained in its first updates.
std::set<std::string> trained_by(const Options& options, const std::string& config_json,
                                 int64_t updates) {
  const ModelSpec model = model_of(options, config_json);
  std::vector<std::string> faults;  // the run was planned without any
  const std::vector<ParamRule> rules = make_param_rules(model, options.optim, faults);
  std::set<std::string> names;
  for (size_t p = 0; p < rules.size(); ++p)
    if (model.params[p].trainable && rules[p].frozen_updates < updates)
      names.insert(model.params[p].name);
  return names;
}

}  // namespace

std::string late_starts(const Plan& plan, const Options& before, int64_t updates) {
  if (updates == 0 || plan.options.optim.kind == OptimizerKind::Sgd) return "";
  const std::set<std::string> trained = trained_by(before, plan.config_json, updates);
  std::string first;
  int64_t others = -1;
  for (size_t p = 0; p < plan.model.params.size(); ++p) {
    const ParamSpec& param = plan.model.params[p];
    const ParamRule& rule = plan.param_rules[p];
    const bool trains = param.trainable && rule.frozen_updates < updates &&
                        rule.frozen_after > updates && !rule.orthogonalises;  // which corrects none
    const bool is_late = trains && !trained.contains(param.name);
    if (is_late && ++others == 0) first = param.name;
  }
  if (others < 0) return "";
  const std::string count = std::to_string(updates);
  return first + (others > 0 ? " and " + std::to_string(others) + " more" : "") +
         " did not train in the " + count +
         " updates before this start, which are counted as theirs: the correction of their first "
         "moments is that of old ones, and their first steps may be several times optim.lr; "
         "optim.frozen = [\"pattern = " +
         count + "\"] counts from there";
}

}  // namespace zea
