// SPDX-License-Identifier: Apache-2.0
// LoRA (arXiv:2106.09685): beside a linear y = W x stand two small matrices that train in its
// place, y = W x + scale B A x. What has adapters stands in the model's config, under a key of
// zea's own, so that whoever has the config (a plan, a checkpoint, a tool) has the same parameters.
#pragma once

#include <string>

#include "deck/options.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Key of zea's own in a config: {module: {"targets", "rank", "alpha", "rslora"}}, with
/// "rank_pattern", "alpha_pattern" and "dropout" where these say something.
inline constexpr const char* kAdapters = "lora_adapters";

/// `config_json` with adapters for each module of which the deck names targets.
std::string with_adapters(const std::string& config_json, const Options& options);
/// The same for one module, with the targets, rank and scale of `lora`.
std::string with_adapters(const std::string& config_json, const std::string& module,
                          const LoraOptions& lora);
/// The model without any.
std::string without_adapters(const std::string& config_json);
bool has_adapters(const std::string& config_json);

/// Whether an adapter can stand beside a linear, of which `param` is the weight.
bool may_have_adapter(const ModelSpec& model, int param);

/// What the adapter of a parameter is multiplied by: alpha / rank, or alpha / sqrt(rank) (rsLoRA,
/// arXiv:2312.03732).
double adapter_scale(const LoraOptions& lora);

}  // namespace zea
