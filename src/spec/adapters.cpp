// SPDX-License-Identifier: Apache-2.0
#include "spec/adapters.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "spec/families.hpp"
#include "spec/param_rules.hpp"

namespace zea {
namespace {

using Config = nlohmann::ordered_json;

constexpr const char* kWeightSuffix = ".weight";
constexpr int kMostRank = 65536;

/// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj"; empty: it is no such name.
std::string linear_name(const ParamSpec& param) {
  const std::string suffix = kWeightSuffix;
  if (!param.name.ends_with(suffix)) return "";
  return param.name.substr(0, param.name.size() - suffix.size());
}

/// Returns the name with * for numbers, which all layers share.
std::string without_numbers(const std::string& name) {
  std::string pattern, word;
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i < name.size() && name[i] != '.') {
      word += name[i];
      continue;
    }
    const bool is_number =
        !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    pattern += (pattern.empty() ? "" : ".") + (is_number ? "*" : word);
    word.clear();
  }
  return pattern;
}

/// "pattern = number" of each rule.
std::vector<PatternRule> parse_rules(const std::string& key,
                                     const std::vector<std::string>& texts) {
  std::vector<PatternRule> rules;
  for (const std::string& text : texts) {
    const std::optional<PatternRule> rule = parse_rule(text);
    if (!rule || rule->value == 0)
      throw PlanError(key + " holds \"" + text +
                      "\"; a rule is \"pattern = number\" with a number above 0");
    rules.push_back(*rule);
  }
  return rules;
}

/// Matches like PEFT: the whole name, or its last words; * stands for any characters.
bool is_target(const std::string& pattern, const std::string& name) {
  return matches(pattern, name) || matches("*." + pattern, name);
}

/// Roles of linears that may have adapters.
bool takes_adapter(UnitKind kind, const std::string& role) {
  static const std::set<std::string> of_block{"qkv",       "q",         "k",    "v",    "delta",
                                              "out",       "gate",      "up",   "down", "latent_q",
                                              "latent_kv", "key_value", "query"};
  static const std::set<std::string> of_projector{"merger", "linear", "linear_1", "linear_2"};
  if (kind == UnitKind::Block) return of_block.contains(role);
  return kind == UnitKind::Projector && of_projector.contains(role);
}

bool is_row_linear(const std::string& role) {
  return role == "out" || role == "down" || role == "linear_2";
}

/// One tensor of a linear's weight: the whole, or a part such as the queries of q, k, v.
struct Target {
  int unit;
  std::string role;  ///< of the linear, without ".weight"
  int part;          ///< which of its tensors it is
  std::vector<int> params;
};

class Adapting {
 public:
  Adapting(ModelSpec& model, std::string module, const LoraOptions& lora, bool trains,
           bool trains_projector)
      : model_(model),
        module_(std::move(module)),
        lora_(lora),
        trains_(trains),
        trains_projector_(trains_projector) {
    list_targets();
    const std::string section = "model." + module_ + ".lora.";
    ranks_ = parse_rules(section + "rank_pattern", lora.rank_pattern);
    alphas_ = parse_rules(section + "alpha_pattern", lora.alpha_pattern);
    for (const PatternRule& rule : ranks_)
      if (rule.value != std::floor(rule.value) || rule.value > kMostRank)
        throw PlanError(section + "rank_pattern: \"" + rule.pattern +
                        "\" has a rank that is no whole number from 1 to " +
                        std::to_string(kMostRank));
  }

  void run() {
    std::vector<bool> is_used(lora_.targets.size(), false);
    std::vector<Target> chosen;
    for (const Target& target : targets_) {
      bool is_chosen = false;
      for (size_t i = 0; i < lora_.targets.size(); ++i) {
        if (!is_target(lora_.targets[i], name_of(target))) continue;
        is_chosen = is_used[i] = true;
      }
      if (is_chosen) chosen.push_back(target);
    }
    for (size_t i = 0; i < is_used.size(); ++i)
      if (!is_used[i]) refuse(lora_.targets[i]);
    check_rules(chosen);
    freeze(chosen);
    for (const Target& target : chosen) add(target);
  }

 private:
  std::string name_of(const Target& target) const {
    return linear_name(model_.params[static_cast<size_t>(target.params.front())]);
  }

  /// A rule that matches no adapter has no effect.
  void check_rules(const std::vector<Target>& chosen) const {
    for (const auto& [key, rules] :
         {std::pair("rank_pattern", &ranks_), {"alpha_pattern", &alphas_}})
      for (const PatternRule& rule : *rules)
        if (std::ranges::none_of(chosen, [&](const Target& target) {
              return is_target(rule.pattern, name_of(target));
            }))
          throw PlanError("model." + module_ + ".lora." + key + ": \"" + rule.pattern +
                          "\" matches no linear that targets name");
  }

  /// Returns the options with the rank and the alpha of that linear.
  LoraOptions lora_of(const std::string& linear) const {
    LoraOptions own = lora_;
    for (const PatternRule& rule : ranks_)
      if (is_target(rule.pattern, linear)) own.rank = static_cast<int64_t>(rule.value);
    for (const PatternRule& rule : alphas_)
      if (is_target(rule.pattern, linear)) own.alpha = rule.value;
    return own;
  }

  void list_targets() {
    for (size_t u = 0; u < model_.units.size(); ++u) {
      const UnitSpec& unit = model_.units[u];
      if (unit.module != module_) continue;
      for (const std::string& role_of_weight : unit.roles) {
        if (!role_of_weight.ends_with(kWeightSuffix)) continue;
        const std::string role =
            role_of_weight.substr(0, role_of_weight.size() - std::string(kWeightSuffix).size());
        if (takes_adapter(unit.kind, role)) list_parts(static_cast<int>(u), role);
      }
    }
  }

  void list_parts(int unit, const std::string& role) {
    std::vector<Target> parts;
    for (const int p : model_.params_of(model_.units[unit], role + kWeightSuffix)) {
      const ParamSpec& param = model_.params[p];
      if (linear_name(param).empty()) return;
      if (parts.empty() || model_.params[parts.back().params.back()].name != param.name)
        parts.push_back({unit, role, static_cast<int>(parts.size()), {}});
      parts.back().params.push_back(p);
    }
    targets_.insert(targets_.end(), parts.begin(), parts.end());
  }

  [[noreturn]] void refuse(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const Target& target : targets_) {
      const std::string name = without_numbers(name_of(target));
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    throw PlanError("model." + module_ + ".lora.targets: \"" + pattern +
                    "\" matches no linear of " + module_ +
                    " that an adapter can stand beside; these are " +
                    (names.empty() ? "none" : join(names)) + " (or their last words: q_proj)");
  }

  /// Freezes each module, or projector, that has adapters. The norm after an encoder is in the
  /// projector's unit, but belongs to the encoder.
  void freeze(const std::vector<Target>& chosen) {
    const bool of_projector = std::ranges::any_of(
        chosen, [&](const Target& target) { return model_.makes_features(target.unit); });
    for (const UnitSpec& unit : model_.units) {
      if (unit.module != module_) continue;
      for (const std::string& role : unit.roles) {
        if (unit.is_of_projector(role) && !of_projector) continue;
        for (const int p : model_.params_of(unit, role)) model_.params[p].trainable = false;
      }
    }
  }

  void add(const Target& target) {
    const ParamSpec& first = model_.params[static_cast<size_t>(target.params.front())];
    UnitSpec& unit = model_.units[static_cast<size_t>(target.unit)];
    const std::string name = name_of(target), number = std::to_string(target.part);
    const WeightOrder order = order_of(unit, target.role);
    const bool is_out_in = order == WeightOrder::OutIn;
    const int64_t in = first.shape[is_out_in ? 1 : 0];
    const LoraOptions lora = lora_of(name);
    Adapter adapter{.role = target.role,
                    .down = target.role + ".adapter_" + number + ".down",
                    .up = target.role + ".adapter_" + number + ".up",
                    .part = target.part,
                    .scale = adapter_scale(lora),
                    .alpha = lora.alpha,
                    .dropout = lora.dropout.value_or(0),
                    .order = order,
                    .base = target.params.front()};
    ParamSpec down{.name = name + ".lora_A.weight",
                   .module = module_,
                   .shape = {lora.rank, in},
                   .init = Init::Uniform,
                   .std = 1 / std::sqrt(static_cast<double>(in))};
    const auto cut = [&](const ParamSpec& base) {
      return is_out_in ? base.tp_cut : other_order(base.tp_cut);
    };
    if (is_row_linear(target.role)) down.tp_cut = cut(first);
    adapter.a = add_param(target.unit, std::move(down));
    unit.roles.push_back(adapter.down + kWeightSuffix);
    for (const int p : model_.params_of(unit, target.role + kWeightSuffix))
      if (p >= target.params.front())
        adapter.outputs_left += model_.params[p].shape[is_out_in ? 0 : 1];
    for (const int p : target.params) {
      const ParamSpec base = model_.params[p];
      adapter.outputs += base.shape[is_out_in ? 0 : 1];
      const int64_t out = base.shape[is_out_in ? 0 : 1];
      ParamSpec up{.name = name + ".lora_B.weight",
                   .module = module_,
                   .shape = {out, lora.rank},
                   .init = Init::Zeros,
                   .fused_with_next = p != target.params.back(),
                   .part = base.part};
      if (!is_row_linear(target.role)) up.tp_cut = cut(base);
      const int index = add_param(target.unit, std::move(up));
      if (p == target.params.front()) adapter.b = index;
    }
    unit.roles.push_back(adapter.up + kWeightSuffix);
    unit.adapters.push_back(std::move(adapter));
  }

  WeightOrder order_of(const UnitSpec& unit, const std::string& role) const {
    if (unit.kind == UnitKind::Block) return model_.block(unit.module).order;
    return role == "linear" ? model_.encoders[unit.encoder].projector.order : WeightOrder::OutIn;
  }

  int add_param(int unit, ParamSpec param) {
    param.trainable = trains_ && (trains_projector_ || !model_.makes_features(unit));
    model_.params.push_back(std::move(param));
    const int added = static_cast<int>(model_.params.size()) - 1;
    model_.units[static_cast<size_t>(unit)].params.push_back(added);
    return added;
  }

  ModelSpec& model_;
  const std::string module_;
  const LoraOptions& lora_;
  const bool trains_, trains_projector_;
  std::vector<PatternRule> ranks_, alphas_;
  std::vector<Target> targets_;
};

Config parsed(const std::string& config_json) {
  Config config = Config::parse(config_json, nullptr, false);
  return config.is_object() ? config : Config();  // make_model_spec says what is wrong with it
}

}  // namespace

void detail::add_adapters(ModelSpec& model, const ConfigReader& adapters,
                          const Trainable& trainable) {
  for (const std::string& module : adapters.keys()) {
    const ConfigReader said = adapters.object(module.c_str());
    LoraOptions lora;
    lora.targets = said.texts("targets");
    lora.rank = said.positive("rank", lora.rank);
    lora.alpha = said.number("alpha", lora.alpha);
    lora.rslora = said.boolean("rslora", lora.rslora);
    lora.rank_pattern = said.texts("rank_pattern");
    lora.alpha_pattern = said.texts("alpha_pattern");
    if (const double dropout = said.number("dropout", 0); !trainable.all_frozen)
      lora.dropout = dropout;
    const bool trains =
        module == kDecoder ? trainable.llm && !trainable.all_frozen : trainable.of(module).encoder;
    const bool trains_projector = module == kDecoder || trainable.of(module).projector;
    if (model.has(module)) Adapting(model, module, lora, trains, trains_projector).run();
  }
}

std::string with_adapters(const std::string& config_json, const std::string& module,
                          const LoraOptions& lora) {
  Config config = parsed(config_json);
  if (config.is_null()) return config_json;
  Config& said = config[kAdapters][module];
  said = {{"targets", lora.targets},
          {"rank", lora.rank},
          {"alpha", lora.alpha},
          {"rslora", lora.rslora}};
  if (!lora.rank_pattern.empty()) said["rank_pattern"] = lora.rank_pattern;
  if (!lora.alpha_pattern.empty()) said["alpha_pattern"] = lora.alpha_pattern;
  if (lora.dropout.value_or(0) != 0) said["dropout"] = *lora.dropout;
  return config.dump();
}

std::string with_adapters(const std::string& config_json, const Options& options) {
  std::string config = config_json;
  for (const auto& [encoder, section] : options.encoders)
    if (!section.lora.targets.empty()) config = with_adapters(config, encoder, section.lora);
  if (!options.llm.lora.targets.empty()) config = with_adapters(config, kDecoder, options.llm.lora);
  return config;
}

std::string without_adapters(const std::string& config_json) {
  if (!has_adapters(config_json)) return config_json;
  Config config = parsed(config_json);
  config.erase(kAdapters);
  return config.dump();
}

bool has_adapters(const std::string& config_json) {
  return config_json.find(kAdapters) != std::string::npos &&
         parsed(config_json).contains(kAdapters);
}

bool may_have_adapter(const ModelSpec& model, int param) {
  const std::string suffix = kWeightSuffix;
  for (const UnitSpec& unit : model.units)
    for (const std::string& role : unit.roles)
      if (role.ends_with(suffix) &&
          takes_adapter(unit.kind, role.substr(0, role.size() - suffix.size())) &&
          std::ranges::count(model.params_of(unit, role), param) > 0)
        return true;
  return false;
}

double adapter_scale(const LoraOptions& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rslora ? std::sqrt(rank) : rank);
}

}  // namespace zea
