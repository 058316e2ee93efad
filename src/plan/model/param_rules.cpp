// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/model/param_rules.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace zea {
namespace {

/// As many updates as there can be.
constexpr double kForGood = 1e18;

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// A rule of optim.frozen: a pattern alone freezes for good.
std::optional<PatternRule> parse_frozen(const std::string& text) {
  if (text.find('=') == std::string::npos && !trim(text).empty())
    return PatternRule{trim(text), kForGood};
  const std::optional<PatternRule> rule = parse_rule(text);
  return rule && rule->value == std::floor(rule->value) && rule->value < 1e15 ? rule : std::nullopt;
}

/// The parameters that a pattern matches; a fault where there are none.
std::vector<size_t> params_of(const std::string& key, const std::string& pattern,
                              const ModelSpec& model, std::vector<std::string>& faults) {
  std::vector<size_t> found;
  for (size_t p = 0; p < model.params.size(); ++p)
    if (pattern == model.params[p].module || matches(pattern, model.params[p].name))
      found.push_back(p);
  if (found.empty())
    faults.push_back(key + ": \"" + pattern + "\" matches no parameter; use a module (" +
                     model.module_names() + ") or a name such as " + model.params.front().name +
                     ", with * for any characters");
  return found;
}

/// Calls `set` for every parameter that a rule of `key` matches, in the order of the rules.
template <class Set>
void apply_rules(const std::string& key, const std::vector<std::string>& texts,
                 const ModelSpec& model, std::vector<std::string>& faults, Set set) {
  for (const std::string& text : texts) {
    const std::optional<PatternRule> rule = parse_rule(text);
    if (!rule) {
      faults.push_back(key + " holds \"" + text +
                       "\"; a rule is \"pattern = number\" with a number of 0 or more");
      continue;
    }
    for (const size_t p : params_of(key, rule->pattern, model, faults)) set(p, rule->value);
  }
}

/// Of each parameter, the updates for which it is frozen; kForGood: all.
std::vector<double> frozen_updates(const ModelSpec& model, const OptimOptions& optim,
                                   std::vector<std::string>& faults) {
  std::vector<double> updates(model.params.size(), 0);
  for (const std::string& text : optim.frozen) {
    const std::optional<PatternRule> rule = parse_frozen(text);
    if (!rule) {
      faults.push_back("optim.frozen holds \"" + text +
                       "\"; a rule is \"pattern\", or \"pattern = updates\" with a whole number "
                       "of 0 or more");
      continue;
    }
    const std::vector<size_t> params = params_of("optim.frozen", rule->pattern, model, faults);
    for (const size_t p : params) updates[p] = rule->value;
    if (rule->value != kForGood && !params.empty() &&
        std::ranges::none_of(params, [&](size_t p) { return model.params[p].trainable; }))
      faults.push_back("optim.frozen: \"" + text +
                       "\" matches only parameters that are never trained; leave it out");
  }
  return updates;
}

/// Matrices of which all that reads them is a block or a projector: no embeddings, no head.
std::vector<bool> inner_matrices(const ModelSpec& model) {
  std::vector<bool> inner(model.params.size(), false), outer = inner;
  for (const UnitSpec& unit : model.units)
    for (const int p : unit.params)
      (unit.kind == UnitKind::Block || unit.kind == UnitKind::Projector ? inner : outer)[p] = true;
  for (size_t p = 0; p < inner.size(); ++p)
    inner[p] = inner[p] && !outer[p] && model.params[p].tensor_shape().size() == 2;
  return inner;
}

}  // namespace

std::optional<PatternRule> parse_rule(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos) return std::nullopt;
  const std::string pattern = trim(text.substr(0, equals)), number = trim(text.substr(equals + 1));
  PatternRule rule{pattern, 0};
  const auto [end, fault] =
      std::from_chars(number.data(), number.data() + number.size(), rule.value);
  const bool good = fault == std::errc() && end == number.data() + number.size() &&
                    std::isfinite(rule.value) && rule.value >= 0 && !pattern.empty();
  return good ? std::optional(rule) : std::nullopt;
}

bool matches(const std::string& pattern, const std::string& name) {
  // The last * takes one more character whenever what follows it does not fit.
  size_t p = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

void freeze_params(const OptimOptions& optim, ModelSpec& model) {
  std::vector<std::string> faults;  // told by make_param_rules()
  const std::vector<double> updates = frozen_updates(model, optim, faults);
  std::vector<bool> trains(model.params.size(), false);
  for (const UnitSpec& unit : model.units)
    if (std::ranges::any_of(unit.params, [&](int p) { return updates[p] != kForGood; }))
      for (const int p : unit.params) trains[p] = true;
  for (size_t p = 0; p < trains.size(); ++p)
    if (!trains[p]) model.params[p].trainable = false;
}

std::vector<ParamRule> make_param_rules(const ModelSpec& model, const OptimOptions& optim,
                                        std::vector<std::string>& faults) {
  std::vector<ParamRule> rules(model.params.size());
  for (size_t p = 0; p < rules.size(); ++p)
    rules[p].weight_decay = model.params[p].decays() ? optim.weight_decay : 0;
  apply_rules("optim.lr_factors", optim.lr_factors, model, faults,
              [&](size_t p, double value) { rules[p].lr_factor = value; });
  apply_rules("optim.weight_decays", optim.weight_decays, model, faults,
              [&](size_t p, double value) { rules[p].weight_decay = value; });
  const std::vector<double> updates = frozen_updates(model, optim, faults);
  for (size_t p = 0; p < rules.size(); ++p)
    rules[p].frozen_updates = static_cast<int64_t>(updates[p]);
  if (optim.kind != OptimizerKind::Muon) return rules;
  const std::vector<bool> inner = inner_matrices(model);
  for (size_t p = 0; p < rules.size(); ++p) rules[p].orthogonalises = inner[p];
  return rules;
}

}  // namespace zea
