// SPDX-License-Identifier: Apache-2.0
#include "spec/adapters.hpp"

#include <cmath>

#include <nlohmann/json.hpp>

namespace zea {
namespace {

using Config = nlohmann::ordered_json;

Config parsed(const std::string& config_json) {
  Config config = Config::parse(config_json, nullptr, false);
  return config.is_object() ? config : Config();  // make_model_spec says what is wrong with it
}

}  // namespace

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

std::vector<AdapterParams> params_of_adapter(const ModelSpec& model, const UnitSpec& unit,
                                             const Adapter& adapter) {
  if (adapter.experts == 0 || adapter.stacks_experts) return {{adapter.base, adapter.a, adapter.b}};
  const std::vector<int> bases = model.params_of(unit, adapter.role + ".weight");
  const int parts = static_cast<int>(std::ssize(bases) / adapter.experts);
  std::vector<AdapterParams> all;
  for (int e = 0; e < adapter.experts; ++e)
    all.push_back({bases[e * parts + adapter.part], adapter.a + e, adapter.b + e});
  return all;
}

double adapter_scale(const LoraOptions& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.rslora ? std::sqrt(rank) : rank);
}

}  // namespace zea
