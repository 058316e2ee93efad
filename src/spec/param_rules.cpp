// SPDX-License-Identifier: Apache-2.0
#include "spec/param_rules.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace zea {
namespace {

/// More updates than any run has.
constexpr double kForGood = 1e18;

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// "text from updates" -> text and updates, or 0 without them; nullopt: they are no number.
std::optional<std::pair<std::string, int64_t>> split_from(const std::string& text) {
  const std::string word = " from ";
  const size_t at = text.rfind(word);
  if (at == std::string::npos) return std::pair(text, int64_t{0});
  const std::string number = trim(text.substr(at + word.size()));
  int64_t updates = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), updates);
  if (fault != std::errc() || end != number.data() + number.size() || updates < 1)
    return std::nullopt;
  return std::pair(text.substr(0, at), updates);
}

/// The updates in which a parameter is frozen: the first ones, and those after so many.
struct Frozen {
  double updates = 0;
  int64_t after = INT64_MAX;
};

/// A rule of optim.frozen: a pattern alone freezes for good.
std::optional<std::pair<std::string, Frozen>> parse_frozen(const std::string& text) {
  const auto split = split_from(text);
  if (!split || trim(split->first).empty()) return std::nullopt;
  const auto& [rest, after] = *split;
  const bool is_bare = rest.find('=') == std::string::npos;
  if (is_bare && after > 0) return std::pair(trim(rest), Frozen{0, after});
  if (is_bare) return std::pair(trim(rest), Frozen{kForGood});
  const std::optional<PatternRule> rule = parse_rule(rest);
  if (!rule || after > 0 || rule->value != std::floor(rule->value) || rule->value >= 1e15)
    return std::nullopt;
  return std::pair(rule->pattern, Frozen{rule->value});
}

/// Returns the parameters that a pattern matches; adds a fault where there are none.
std::vector<size_t> params_of(const std::string& key, const std::string& pattern,
                              const ModelSpec& model, std::vector<std::string>& faults) {
  std::vector<size_t> found = matched_params(model, pattern);
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
    const std::optional<ParamPattern> rule = parse_param_rule(text);
    if (!rule) {
      faults.push_back(key + " holds \"" + text +
                       "\"; a rule is \"pattern = number\" with a number of 0 or more, or "
                       "\"pattern = number from updates\" with a whole number of 1 or more");
      continue;
    }
    for (const size_t p : params_of(key, rule->pattern, model, faults)) set(p, *rule);
  }
}

/// A rule overrides earlier ones from its first update on.
void set_value(const ParamPattern& rule, double& first, std::vector<ValueAfter>& later) {
  std::erase_if(later, [&](const ValueAfter& other) { return other.updates >= rule.after; });
  if (rule.after == 0)
    first = rule.value;
  else
    later.push_back({rule.after, rule.value});
}

double value_at(int64_t update, double first, const std::vector<ValueAfter>& later) {
  for (const ValueAfter& value : later)
    if (update > value.updates) first = value.value;
  return first;
}

/// Returns the frozen updates of each parameter; kForGood: all.
std::vector<Frozen> frozen_updates(const ModelSpec& model, const OptimOptions& optim,
                                   std::vector<std::string>& faults) {
  std::vector<Frozen> frozen(model.params.size());
  for (const std::string& text : optim.frozen) {
    const auto rule = parse_frozen(text);
    if (!rule) {
      faults.push_back("optim.frozen holds \"" + text +
                       "\"; a rule is \"pattern\", \"pattern = updates\" with a whole number of "
                       "0 or more, or \"pattern from updates\" with one of 1 or more");
      continue;
    }
    const auto& [pattern, updates] = *rule;
    const std::vector<size_t> params = params_of("optim.frozen", pattern, model, faults);
    for (const size_t p : params) frozen[p] = updates;
    if (updates.updates != kForGood && !params.empty() &&
        std::ranges::none_of(params, [&](size_t p) { return model.params[p].trainable; }))
      faults.push_back("optim.frozen: \"" + text +
                       "\" matches only parameters that are never trained; leave it out");
  }
  return frozen;
}

bool is_inner(UnitKind kind) {
  return kind == UnitKind::Block || kind == UnitKind::Keys || kind == UnitKind::Projector;
}

/// Finds the matrices that only blocks and projectors read: not embeddings, not the head, and not
/// the tables, linears and adapters of per-layer inputs, which are split over blocks.
std::vector<bool> inner_matrices(const ModelSpec& model) {
  std::vector<bool> inner(model.params.size(), false), outer = inner;
  for (const UnitSpec& unit : model.units)
    for (const int p : unit.params) (is_inner(unit.kind) ? inner : outer)[p] = true;
  for (const UnitSpec& unit : model.units)
    for (const std::string& role : unit.roles)
      if (role == "input_table" || role.starts_with("input_context."))
        for (const int p : model.params_of(unit, role)) outer[p] = true;
  for (size_t p = 0; p < inner.size(); ++p) {
    const ParamSpec& param = model.params[p];
    inner[p] =
        inner[p] && !outer[p] && param.tensor_shape().size() == (param.stacks_experts ? 3 : 2);
  }
  return inner;
}

}  // namespace

double ParamRule::lr_factor_at(int64_t update) const {
  return value_at(update, lr_factor, later_lr_factors);
}

double ParamRule::weight_decay_at(int64_t update) const {
  return value_at(update, weight_decay, later_weight_decays);
}

std::optional<ParamPattern> parse_param_rule(const std::string& text) {
  const auto split = split_from(text);
  const std::optional<PatternRule> rule = split ? parse_rule(split->first) : std::nullopt;
  if (!rule) return std::nullopt;
  return ParamPattern{rule->pattern, rule->value, split->second};
}

std::vector<size_t> matched_params(const ModelSpec& model, const std::string& pattern) {
  std::vector<size_t> found;
  for (size_t p = 0; p < model.params.size(); ++p)
    if (pattern == model.params[p].module || matches(pattern, model.params[p].name))
      found.push_back(p);
  return found;
}

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
  // The last * takes one more character whenever the rest does not match.
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
  const std::vector<Frozen> frozen = frozen_updates(model, optim, faults);
  std::vector<bool> trains(model.params.size(), false);
  for (const UnitSpec& unit : model.units)
    if (std::ranges::any_of(unit.params, [&](int p) { return frozen[p].updates != kForGood; }))
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
              [&](size_t p, const ParamPattern& rule) {
                set_value(rule, rules[p].lr_factor, rules[p].later_lr_factors);
              });
  apply_rules("optim.weight_decays", optim.weight_decays, model, faults,
              [&](size_t p, const ParamPattern& rule) {
                set_value(rule, rules[p].weight_decay, rules[p].later_weight_decays);
              });
  const std::vector<Frozen> frozen = frozen_updates(model, optim, faults);
  for (size_t p = 0; p < rules.size(); ++p) {
    rules[p].frozen_updates = static_cast<int64_t>(frozen[p].updates);
    rules[p].frozen_after = frozen[p].after;
  }
  if (optim.kind != OptimizerKind::Muon) return rules;
  const std::vector<bool> inner = inner_matrices(model);
  for (size_t p = 0; p < rules.size(); ++p) rules[p].orthogonalizes = inner[p];
  return rules;
}

}  // namespace zea
