// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/buffers/optimizer_spec.hpp"

#include <algorithm>

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

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

bool reads(const OptimizerSpec& optimizer, const std::string& key) {
  return std::ranges::count(optimizer.keys, key) > 0;
}

/// Ascending, as files list them.
std::vector<std::string> state_names(const OptimizerSpec& optimizer) {
  std::vector<std::string> names;
  for (const StateSpec& state : optimizer.states) names.push_back(state.name);
  std::ranges::sort(names);
  return names;
}

std::string quoted(const OptimizerSpec& optimizer) {
  return "optim.kind = \"" + optimizer.name + "\"";
}

}  // namespace

int64_t OptimizerSpec::state_bytes(DType master) const {
  int64_t bytes = 0;
  for (const StateSpec& state : states)
    bytes += static_cast<int64_t>(element_bytes(state.type(master)));
  return bytes;
}

std::string OptimizerSpec::why_not_from(const std::vector<std::string>& states) const {
  const std::vector<std::string> own = state_names(*this);
  if (states == own) return "";
  std::string found = "it holds " + joined(states) + " of what it trained";
  std::string remedy;
  for (const OptimizerSpec& other : optimizers())
    if (state_names(other) == states) remedy += (remedy.empty() ? "" : " or ") + quoted(other);
  return found + ", but " + quoted(*this) + " goes on from " + joined(own) + "; " +
         (remedy.empty() ? "" : "go on with " + remedy + ", or ") +
         "start a new run with these weights as model.weights";
}

const std::vector<OptimizerSpec>& optimizers() {
  static const std::vector<OptimizerSpec> kOptimizers{
      {"adamw", {{"exp_avg"}, {"exp_avg_sq"}}, {"betas", "eps"}},
      {"adam", {{"exp_avg"}, {"exp_avg_sq"}}, {"betas", "eps"}},
      {"sgd", {{"momentum_buffer"}}, {"momentum"}},
      // The moments of AdamW where that stands in; Muon's own is the first.
      {"muon", {{"momentum_buffer"}, {"exp_avg_sq"}}, {"betas", "eps", "momentum", "muon_rate"}},
  };
  return kOptimizers;
}

OptimizerSpec make_optimizer_spec(const OptimOptions& optim, std::vector<std::string>& faults) {
  const auto& all = optimizers();
  const OptimizerSpec& own = *std::ranges::find(all, optim.kind, &OptimizerSpec::name);
  for (const std::string& key : keys_set(optim)) {
    const auto other =
        std::ranges::find_if(all, [&](const OptimizerSpec& one) { return reads(one, key); });
    if (other == all.end() || reads(own, key)) continue;
    faults.push_back("optim." + key + " is set, but " + quoted(own) + " has " + joined(own.keys) +
                     "; leave it out, or choose " + quoted(*other));
  }
  return own;
}

}  // namespace zea
