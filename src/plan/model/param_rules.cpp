// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/model/param_rules.hpp"

#include <charconv>
#include <cmath>
#include <optional>

namespace zea {
namespace {

struct PatternRule {
  std::string pattern;
  double value;
};

std::string trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
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
    bool found = false;
    for (size_t p = 0; p < model.params.size(); ++p) {
      const ParamSpec& param = model.params[p];
      if (rule->pattern != param.module && !matches(rule->pattern, param.name)) continue;
      set(p, rule->value);
      found = true;
    }
    if (!found)
      faults.push_back(key + ": \"" + rule->pattern + "\" matches no parameter; use a module (" +
                       model.module_names() + ") or a name such as " + model.params.front().name +
                       ", with * for any characters");
  }
}

}  // namespace

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

std::vector<ParamRule> make_param_rules(const ModelSpec& model, const OptimOptions& optim,
                                        std::vector<std::string>& faults) {
  std::vector<ParamRule> rules(model.params.size());
  for (size_t p = 0; p < rules.size(); ++p)
    rules[p].weight_decay = model.params[p].decays() ? optim.weight_decay : 0;
  apply_rules("optim.lr_factors", optim.lr_factors, model, faults,
              [&](size_t p, double value) { rules[p].lr_factor = value; });
  apply_rules("optim.weight_decays", optim.weight_decays, model, faults,
              [&](size_t p, double value) { rules[p].weight_decay = value; });
  return rules;
}

}  // namespace zea
