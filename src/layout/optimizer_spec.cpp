// SPDX-License-Identifier: Apache-2.0
#include "layout/optimizer_spec.hpp"

#include <algorithm>

#include "core/kernel_sizes.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

/// The keys that have another value than by default.
std::vector<std::string> keys_set(OptimOptions optim) {
  OptimOptions defaults;
  std::vector<void*> unset;
  defaults.visit([&](auto& member, const KeyInfo&) { unset.push_back(&member); });
  std::vector<std::string> set;
  size_t key = 0;
  optim.visit([&](auto& member, const KeyInfo& info) {
    if (member != *static_cast<decltype(&member)>(unset[key++])) set.emplace_back(info.name);
  });
  return set;
}

bool reads(const OptimizerSpec& optimizer, const std::string& key) {
  return std::ranges::count(optimizer.keys, key) > 0;
}

/// The states of a parameter in such blocks; ascending, as files list them.
std::vector<std::string> state_names(const OptimizerSpec& optimizer, int64_t block) {
  std::vector<std::string> names;
  for (const StateSpec& state : optimizer.states)
    if (state.elements_of_each(block) > 0) names.push_back(state.name);
  std::ranges::sort(names);
  return names;
}

std::string quoted(const OptimizerSpec& optimizer) {
  return "optim.kind = \"" + optimizer.kind + "\"";
}

}  // namespace

int64_t StateSpec::elements_of_each(int64_t block) const {
  switch (of) {
    case StateOf::All:
      return 1;
    case StateOf::Wide:
      return block == 0 ? 1 : 0;
    case StateOf::Codes:
      return block > 0 ? 1 : 0;
    case StateOf::Scales:
      return block;
  }
  return 0;
}

bool OptimizerSpec::has_blocks() const {
  return std::ranges::any_of(states,
                             [](const StateSpec& state) { return state.of == StateOf::Codes; });
}

int64_t OptimizerSpec::state_bytes(DType master, int64_t elements, int64_t block) const {
  int64_t bytes = 0;
  for (const StateSpec& state : states)
    if (const int64_t each = state.elements_of_each(block); each > 0)
      bytes += elements / each * static_cast<int64_t>(element_bytes(state.type(master)));
  return bytes;
}

std::string OptimizerSpec::why_not_from(const std::vector<std::string>& states,
                                        int64_t block) const {
  const std::vector<std::string> own = state_names(*this, block);
  if (states == own) return "";
  std::string found = "it holds " + join(states) + " of what it trained";
  std::string remedy;
  for (const OptimizerSpec& other : optimizers())
    if (state_names(other, 0) == states || state_names(other, 1) == states)
      remedy += (remedy.empty() ? "" : " or ") + quoted(other);
  return found + ", but " + quoted(*this) + " goes on from " + join(own) + "; " +
         (remedy.empty() ? "" : "go on with " + remedy + ", or ") +
         "start a new run with these weights as model.weights";
}

const std::vector<OptimizerSpec>& optimizers() {
  using enum OptimizerKind;
  static const std::vector<OptimizerSpec> kOptimizers{
      {Adamw, {{"exp_avg"}, {"exp_avg_sq"}}, {"betas", "eps"}, true},
      {Adam, {{"exp_avg"}, {"exp_avg_sq"}}, {"betas", "eps"}, true},
      {Sgd, {{"momentum_buffer"}}, {"momentum"}, true},
      // The moments of AdamW where that stands in; Muon's own is the first.
      {Muon, {{"momentum_buffer"}, {"exp_avg_sq"}}, {"betas", "eps", "momentum", "muon_rate"}},
      {Adamw8Bit,
       {{"exp_avg", {}, StateOf::Wide},
        {"exp_avg_sq", {}, StateOf::Wide},
        {"exp_avg_codes", DType::UInt8, StateOf::Codes},
        {"exp_avg_scales", {}, StateOf::Scales},
        {"exp_avg_sq_codes", DType::UInt8, StateOf::Codes},
        {"exp_avg_sq_scales", {}, StateOf::Scales}},
       {"betas", "eps"},
       true},
  };
  return kOptimizers;
}

OptimizerSpec make_optimizer_spec(const OptimOptions& optim, std::vector<std::string>& faults) {
  const auto& all = optimizers();
  const OptimizerSpec& own = *std::ranges::find(all, optim.kind, &OptimizerSpec::kind);
  for (const std::string& key : keys_set(optim)) {
    const auto other =
        std::ranges::find_if(all, [&](const OptimizerSpec& one) { return reads(one, key); });
    if (other == all.end() || reads(own, key)) continue;
    faults.push_back("optim." + key + " is set, but " + quoted(own) + " has " + join(own.keys) +
                     "; leave it out, or choose " + quoted(*other));
  }
  return own;
}

int64_t state_block(const ParamSpec& param, const ParamShard& cut) {
  constexpr int64_t kLeastElements = 4096;  // bitsandbytes', too
  constexpr int64_t kLeastBlock = 8;
  static_assert(kFlatAlignment % kMostStateBlock == 0, "blocks would lie on two shards");
  constexpr int64_t kMostRanks = 8, kBlockOfRanks = 16;
  const auto power_of_two_in = [](int64_t length) { return length & -length; };
  const Shape tensor = param.tensor_shape();
  if (tensor.size() < 2 || num_elements(tensor) < kLeastElements) return 0;
  const int last = static_cast<int>(tensor.size()) - 1;
  int64_t block = power_of_two_in(tensor.back() | param.shape.back() |
                                  (param.part.dim == last ? param.part.begin : 0));
  if (block < kLeastBlock) return 0;
  if (param.tp_sharding.dim == last)
    block = std::max(block / kMostRanks, std::min(block, kBlockOfRanks));
  const int64_t section = cut.shape.back() / (cut.dim == last ? cut.fused_sections : 1);
  return power_of_two_in(std::min(block, kMostStateBlock) | section);
}

int64_t state_elements(const StateSpec& state, const FlatBuffer& buffer,
                       const std::vector<ParamRule>& rules, FlatRange range) {
  if (state.of == StateOf::All) return range.end - range.begin;
  int64_t elements = 0;
  for (const FlatPart& part : parts_in_range(buffer, range))
    if (const int64_t each = state.elements_of_each(rules[part.param].state_block); each > 0)
      elements += part.elements / each;
  return elements;
}

int64_t state_bytes(const OptimizerSpec& optimizer, const FlatBuffer& buffer,
                    const std::vector<ParamRule>& rules, FlatRange range, DType master) {
  int64_t bytes = 0;
  for (const StateSpec& state : optimizer.states)
    bytes += state_elements(state, buffer, rules, range) *
             static_cast<int64_t>(element_bytes(state.type(master)));
  return bytes;
}

}  // namespace zea
