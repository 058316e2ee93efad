// SPDX-License-Identifier: Apache-2.0
// LoRA (arXiv:2106.09685): a frozen linear y = W x gets two small matrices that train, y = W x +
// scale B A x. The model's config lists the adapters under a key of zea's own, so that each reader
// of the config (a plan, a checkpoint, a tool) has the same parameters.
#pragma once

#include <string>

#include "deck/options.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Zea's key in a config: {module: {"targets", "rank", "alpha", "rslora"}}, with "rank_pattern",
/// "alpha_pattern" and "dropout" where they are set.
inline constexpr const char* kAdapters = "lora_adapters";

/// Returns `config_json` with adapters for each module with targets in the deck.
std::string with_adapters(const std::string& config_json, const Options& options);
/// Returns it with adapters for one module, with the targets, rank and scale of `lora`.
std::string with_adapters(const std::string& config_json, const std::string& module,
                          const LoraOptions& lora);
/// Returns the config without adapters.
std::string without_adapters(const std::string& config_json);
bool has_adapters(const std::string& config_json);

/// Returns whether the linear with weight `param` may have an adapter.
bool may_have_adapter(const ModelSpec& model, int param);

/// The matrices A and B of an adapter and the weight that it adapts, as indices in
/// ModelSpec::params.
struct AdapterParams {
  int base, a, b;
};
/// Returns one entry for an adapter, or one per expert if experts have separate tensors.
std::vector<AdapterParams> params_of_adapter(const ModelSpec& model, const UnitSpec& unit,
                                             const Adapter& adapter);

/// Returns the scale of an adapter: alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732).
double adapter_scale(const LoraOptions& lora);

}  // namespace zea
