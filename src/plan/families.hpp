// SPDX-License-Identifier: Apache-2.0
// The functions that the table of families in model_spec.cpp calls: from a config to units and
// parameters. Names are those of the files that transformers' save_pretrained writes.
#pragma once

#include <string>

#include "model_config.hpp"
#include "spec_builder.hpp"

namespace zea::detail {

ModelSpec make_gpt2(const ConfigReader& config, const Trainable& trainable);
ModelSpec make_llama(const ConfigReader& config, const Trainable& trainable);
ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable);

/// The units of a Llama decoder whose parameters' names start with `prefix`. `features` is the unit
/// that makes what is merged into its text, or -1.
void add_llama_decoder(SpecBuilder& builder, const TextConfig& text, const std::string& prefix,
                       int features, bool trainable);

}  // namespace zea::detail
