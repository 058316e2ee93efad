// SPDX-License-Identifier: Apache-2.0
// The linears that may have adapters, and the parameters that adapters add to a model.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"
#include "spec/adapters.hpp"
#include "spec/families.hpp"
#include "spec/param_rules.hpp"

namespace zea {
namespace {

constexpr const char* kWeightSuffix = ".weight";
constexpr int kMostRank = 65536;
/// The role of the linear that makes keys of relative positions.
constexpr const char* kRelativeKeys = "relative_k";

/// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj"; other names -> "".
std::string linear_name(const ParamSpec& param) {
  const std::string suffix = kWeightSuffix;
  if (!param.name.ends_with(suffix)) return "";
  return param.name.substr(0, param.name.size() - suffix.size());
}

/// Returns the name with * for numbers, a pattern that matches it in all layers.
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

/// Parses rules "pattern = number".
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

constexpr std::array kOfMixers{"qkv",        "q",        "k",          "v",         "out",
                               "query",      "delta",    "latent_q",   "latent_kv", "key_value",
                               "conv_start", "conv_end", kRelativeKeys};
constexpr std::array kOfMlps{
    "gate",       "up",           "down",   "router",   "shared_gate", "shared.up", "shared.down",
    "experts.up", "experts.down", "ff1.up", "ff1.down", "ff2.up",      "ff2.down"};
constexpr std::array kOfLayerInputs{"input_gate", "input_context", "input_projection"};
constexpr std::array kOfProjectors{"encoder_linear", "merger", "linear", "linear_1", "linear_2"};

/// Whether a linear of `unit` with this role may have an adapter.
bool takes_adapter(const ModelSpec& model, const UnitSpec& unit, const std::string& role) {
  switch (unit.kind) {
    case UnitKind::PatchEmbed:  // a convolution has more dims
      return role == "patch" &&
             model.params[model.params_of(unit, role + kWeightSuffix).front()].shape.size() == 2;
    case UnitKind::AudioEmbed:
      return role == "in";
    case UnitKind::Keys:
      return role == "qkv";
    case UnitKind::Block:
      return std::ranges::count(kOfMixers, role) > 0 || std::ranges::count(kOfMlps, role) > 0 ||
             std::ranges::count(kOfLayerInputs, role) > 0;
    case UnitKind::Projector:
      return std::ranges::count(kOfProjectors, role) > 0;
    default:
      return false;
  }
}

bool is_row_linear(const std::string& role) {
  return role == "out" || role == "linear_2" || role == "conv_end" || role.ends_with("down");
}

/// Whether a linear belongs to a mixture of experts, where each tp rank has the rows of all tp
/// ranks.
bool is_in_mixture(const std::string& role) {
  return role == "router" || role.starts_with("experts.") || role.starts_with("shared");
}

/// A linear that may have an adapter, or the same linear of all experts of a layer. A fused weight
/// (q, k, v) has one target per tensor.
struct Target {
  int unit;
  std::string role;  ///< of the linear, without ".weight"
  int part;          ///< index among the tensors of the role
  std::vector<int> params;
  /// The name of the linear, of each expert's linear, or of the tensor that stacks the experts.
  std::vector<std::string> names = {};
  int64_t experts = 0;  ///< number of experts with this linear; 0: no linear of experts
  bool stacks = false;  ///< one adapter with stacked matrices adapts all experts

  const std::string& name() const { return names.front(); }
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
    std::vector<Target> chosen;
    std::vector<bool> has_all(targets_.size(), false);
    for (const std::string& pattern : lora_.targets) choose(pattern, has_all);
    for (size_t i = 0; i < targets_.size(); ++i)
      if (has_all[i]) chosen.push_back(targets_[i]);
    check_rules(chosen);
    check_experts(chosen);
    check_dropout(chosen);
    freeze(chosen);
    for (const Target& target : chosen) target.experts > 0 ? add_of_experts(target) : add(target);
  }

 private:
  /// Chooses the targets that a pattern matches. Names in the weights files have precedence over
  /// the names of tensors into which transformers stacks the experts of these files.
  void choose(const std::string& pattern, std::vector<bool>& chosen) const {
    for (const bool is_stacked : {false, true}) {
      bool is_used = false;
      for (size_t i = 0; i < targets_.size(); ++i) {
        const Target& target = targets_[i];
        if (has_split_experts(target) != is_stacked) continue;
        const auto matching = std::ranges::count_if(
            target.names, [&](const std::string& name) { return is_target(pattern, name); });
        if (matching == 0) continue;
        if (matching < std::ssize(target.names))
          throw PlanError("model." + module_ + ".lora.targets: \"" + pattern + "\" matches " +
                          std::to_string(matching) + " of the " +
                          std::to_string(target.names.size()) + " experts of " +
                          without_numbers(target.names.front()) +
                          "; all experts of a layer have adapters, or none: name experts.*");
        chosen[i] = is_used = true;
      }
      if (is_used) return;
    }
    refuse(pattern);
  }
  /// Whether the target is stacked, but files have a tensor per expert.
  bool has_split_experts(const Target& target) const {
    return target.stacks && !model_.params[target.params.front()].stacks_experts;
  }

  /// Refuses dropout in mixtures of experts (PEFT has none there either) and of relative positions,
  /// which belong to no sample.
  void check_dropout(const std::vector<Target>& chosen) const {
    if (lora_.dropout.value_or(0) == 0) return;
    for (const Target& target : chosen) {
      const bool is_of_positions = target.role == kRelativeKeys;
      if (!is_of_positions && !is_in_mixture(target.role)) continue;
      throw PlanError("model." + module_ + ".lora.dropout = " + formatted("%g", *lora_.dropout) +
                      ", but " + without_numbers(target.name()) +
                      (is_of_positions
                           ? " reads relative positions, which have no dropout; set it to 0, "
                             "or leave this linear out of targets"
                           : " is in a mixture of experts, whose adapters have no dropout; set it "
                             "to 0, or leave experts, routers and shared experts out of targets"));
    }
  }

  /// Refuses targets that name the same weights twice.
  void check_experts(const std::vector<Target>& chosen) const {
    const Target* stack = nullptr;
    for (const Target& target : chosen) {
      if (target.experts == 0) continue;
      if (stack && stack->unit == target.unit && stack->role == target.role)
        throw PlanError("model." + module_ + ".lora.targets name both " + stack->name() + " and " +
                        without_numbers(target.name()) +
                        ", which are the same weights; leave one of them out");
      if (target.stacks) stack = &target;
    }
  }

  /// Refuses rules that match no adapter.
  void check_rules(const std::vector<Target>& chosen) const {
    for (const auto& [key, rules] :
         {std::pair("rank_pattern", &ranks_), {"alpha_pattern", &alphas_}})
      for (const PatternRule& rule : *rules)
        if (std::ranges::none_of(chosen, [&](const Target& target) {
              return std::ranges::any_of(target.names, [&](const std::string& name) {
                return is_target(rule.pattern, name);
              });
            }))
          throw PlanError("model." + module_ + ".lora." + key + ": \"" + rule.pattern +
                          "\" matches no linear that targets name");
  }

  /// Returns the options with the target's rank and alpha, which must be the same for its experts.
  LoraOptions lora_of(const Target& target) const {
    LoraOptions own = lora_of(target.name());
    for (const std::string& name : target.names)
      if (lora_of(name) != own)
        throw PlanError("model." + module_ + ".lora: rank_pattern or alpha_pattern gives " + name +
                        " other values than " + target.name() +
                        "; experts of a layer share both: name experts.*");
    return own;
  }
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
        if (!takes_adapter(model_, unit, role)) continue;
        if (role.starts_with("experts."))
          list_experts(static_cast<int>(u), role);
        else
          list_parts(static_cast<int>(u), role);
      }
    }
  }

  void list_parts(int unit, const std::string& role) {
    std::vector<Target> parts;
    for (const int p : model_.params_of(model_.units[unit], role + kWeightSuffix)) {
      const ParamSpec& param = model_.params[p];
      if (linear_name(param).empty()) return;
      if (parts.empty() || model_.params[parts.back().params.back()].name != param.name)
        parts.push_back({unit, role, static_cast<int>(parts.size()), {}, {linear_name(param)}});
      parts.back().params.push_back(p);
    }
    targets_.insert(targets_.end(), parts.begin(), parts.end());
  }

  /// Lists the targets of a linear of experts: first all experts stacked, as in transformers'
  /// running model, then a matrix per expert, if files have a tensor per expert.
  void list_experts(int unit, const std::string& role) {
    const int64_t experts = model_.mlp(model_.units[unit]).router->experts;
    const std::vector<int> all = model_.params_of(model_.units[unit], role + kWeightSuffix);
    const std::string first = model_.params[all.front()].name;
    if (model_.params[all.front()].stacks_experts) {
      targets_.push_back({unit, role, 0, all, {first}, experts, true});
      return;
    }
    const std::string stack = first.substr(0, first.rfind(".0.") + 1) +
                              (role == "experts.up" ? "gate_up_proj" : "down_proj");
    targets_.push_back({unit, role, 0, all, {stack}, experts, true});
    const size_t parts = all.size() / static_cast<size_t>(experts);
    for (size_t part = 0; part < parts; ++part) {
      Target target{unit, role, static_cast<int>(part), {}, {}, experts};
      for (size_t p = part; p < all.size(); p += parts) {
        target.params.push_back(all[p]);
        target.names.push_back(linear_name(model_.params[all[p]]));
      }
      targets_.push_back(std::move(target));
    }
  }

  [[noreturn]] void refuse(const std::string& pattern) const {
    std::vector<std::string> names;
    for (const Target& target : targets_) {
      const std::string name = without_numbers(target.name());
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    throw PlanError("model." + module_ + ".lora.targets: \"" + pattern +
                    "\" matches no linear of " + module_ + " that can have an adapter; these are " +
                    (names.empty() ? "none" : join(names)) + " (or their last words: q_proj)");
  }

  /// Freezes each module, or projector, that has adapters. The last norm or linear of an encoder is
  /// in the projector's unit, but belongs to the encoder.
  void freeze(const std::vector<Target>& chosen) {
    const bool of_projector = std::ranges::any_of(chosen, [&](const Target& target) {
      return model_.units[target.unit].is_of_projector(target.role);
    });
    for (const UnitSpec& unit : model_.units) {
      if (unit.module != module_) continue;
      for (const std::string& role : unit.roles) {
        if (unit.is_of_projector(role) && !of_projector) continue;
        for (const int p : model_.params_of(unit, role)) model_.params[p].trainable = false;
      }
    }
  }

  /// Blocks with parts of one linear share its A, and have parts of its B.
  void add(const Target& target) {
    const ParamSpec& first = model_.params[static_cast<size_t>(target.params.front())];
    UnitSpec& unit = model_.units[static_cast<size_t>(target.unit)];
    const std::string name = target.name(), number = std::to_string(target.part);
    const WeightOrder order = order_of(unit, target.role);
    const bool is_out_in = order == WeightOrder::OutIn;
    const int64_t in = first.shape[is_out_in ? 1 : 0];
    const LoraOptions lora = lora_of(target);
    const bool is_partial = is_in_mixture(target.role);
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
                   .std = 1 / std::sqrt(static_cast<double>(in)),
                   .tp_sharding = {.of_heads = is_partial}};
    const auto cut = [&](const ParamSpec& base) {
      return is_out_in ? base.tp_sharding : other_order(base.tp_sharding);
    };
    if (is_row_linear(target.role)) down.tp_sharding = cut(first);
    const int shared = first.part.length > 0 ? model_.param_index(down.name) : -1;
    adapter.a = shared < 0 ? add_param(target, std::move(down)) : shared;
    if (shared >= 0) unit.params.push_back(shared);
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
                   .tp_sharding = {.of_heads = is_partial},
                   .fused_with_next = p != target.params.back(),
                   .part = base.part};
      if (!is_row_linear(target.role)) up.tp_sharding = cut(base);
      const int index = add_param(target, std::move(up));
      if (p == target.params.front()) adapter.b = index;
    }
    unit.roles.push_back(adapter.up + kWeightSuffix);
    unit.adapters.push_back(std::move(adapter));
  }

  /// A is (rank, in) and B (out, rank) of each expert; stacks have the expert as the first dim.
  void add_of_experts(const Target& target) {
    const ParamSpec base = model_.params[static_cast<size_t>(target.params.front())];
    UnitSpec& unit = model_.units[static_cast<size_t>(target.unit)];
    const LoraOptions lora = lora_of(target);
    const WeightOrder order = base.stacks_experts ? *model_.mlp(unit).stack : WeightOrder::OutIn;
    const auto [out_dim, in_dim] = dims_of_experts(base, order);
    const int64_t in = base.shape[in_dim];
    const int64_t parts = std::ssize(model_.params_of(unit, target.role + kWeightSuffix)) /
                          (base.stacks_experts ? 1 : target.experts);
    const int64_t out = base.shape[out_dim] * (target.stacks ? parts : 1);
    const std::string begin = target.role + ".adapter_" + std::to_string(target.part);
    Adapter adapter{.role = target.role,
                    .down = begin + ".down",
                    .up = begin + ".up",
                    .part = target.part,
                    .outputs = out,
                    .outputs_left = out,
                    .scale = adapter_scale(lora),
                    .alpha = lora.alpha,
                    .order = order,
                    .base = target.params.front(),
                    .experts = target.experts,
                    .stacks_experts = target.stacks};
    const bool cuts_inputs = is_row_linear(target.role);
    TpSharding cut{.dim = cuts_inputs ? 1 : 0, .blocks = base.tp_sharding.blocks};
    if (target.stacks) ++cut.dim;
    if (target.stacks && !cuts_inputs)
      cut.fused_sections = std::max(parts, base.tp_sharding.fused_sections);
    const TpSharding whole{.of_heads = true};
    const double most = 1 / std::sqrt(static_cast<double>(in));
    const auto add_matrices = [&](const char* name, const Shape& shape, Init init,
                                  const TpSharding& own_cut) {
      int first = -1;
      for (const std::string& linear : target.names) {
        ParamSpec param{.name = linear + name,
                        .module = module_,
                        .shape = shape,
                        .init = init,
                        .std = most,
                        .tp_sharding = own_cut,
                        .fused_with_next = &linear != &target.names.back(),
                        .stacks_experts = target.stacks};
        if (target.stacks) param.shape.insert(param.shape.begin(), target.experts);
        const int index = add_param(target, std::move(param));
        if (first < 0) first = index;
      }
      return first;
    };
    adapter.a =
        add_matrices(".lora_A.weight", {lora.rank, in}, Init::Uniform, cuts_inputs ? cut : whole);
    adapter.b =
        add_matrices(".lora_B.weight", {out, lora.rank}, Init::Zeros, cuts_inputs ? whole : cut);
    unit.roles.push_back(adapter.down + kWeightSuffix);
    unit.roles.push_back(adapter.up + kWeightSuffix);
    unit.adapters.push_back(std::move(adapter));
  }
  /// Returns the indices of the out and in dims in the weights of experts.
  static std::pair<size_t, size_t> dims_of_experts(const ParamSpec& base, WeightOrder order) {
    const size_t first = base.stacks_experts ? 1 : 0;
    return order == WeightOrder::OutIn ? std::pair(first, first + 1) : std::pair(first + 1, first);
  }

  WeightOrder order_of(const UnitSpec& unit, const std::string& role) const {
    if (is_in_mixture(role)) return WeightOrder::OutIn;
    const bool is_of_input = role.starts_with("input_");
    if (unit.kind == UnitKind::Keys || (unit.kind == UnitKind::Block && !is_of_input))
      return model_.block(unit.module).order;
    return role == "linear" ? model_.encoders[unit.encoder].projector.order : WeightOrder::OutIn;
  }

  int add_param(const Target& target, ParamSpec param) {
    UnitSpec& unit = model_.units[static_cast<size_t>(target.unit)];
    param.trainable = trains_ && (trains_projector_ || !unit.is_of_projector(target.role));
    model_.params.push_back(std::move(param));
    unit.params.push_back(static_cast<int>(model_.params.size()) - 1);
    return unit.params.back();
  }

  ModelSpec& model_;
  const std::string module_;
  const LoraOptions& lora_;
  const bool trains_, trains_projector_;
  std::vector<PatternRule> ranks_, alphas_;
  std::vector<Target> targets_;
};

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

bool may_have_adapter(const ModelSpec& model, int param) {
  const std::string suffix = kWeightSuffix;
  for (const UnitSpec& unit : model.units)
    for (const std::string& role : unit.roles)
      if (role.ends_with(suffix) &&
          takes_adapter(model, unit, role.substr(0, role.size() - suffix.size())) &&
          std::ranges::count(model.params_of(unit, role), param) > 0)
        return true;
  return false;
}

}  // namespace zea
