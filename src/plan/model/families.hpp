// SPDX-License-Identifier: Apache-2.0
// The functions that the table of families in model_spec.cpp calls: from a config to units and
// parameters. Names are those of the files that transformers' save_pretrained writes.
#pragma once

#include <string>
#include <vector>

#include "model_config.hpp"
#include "spec_builder.hpp"

namespace zea::detail {

ModelSpec make_gpt2(const ConfigReader& config, const Trainable& trainable);
ModelSpec make_llama(const ConfigReader& config, const Trainable& trainable);
ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable);

/// The units of a Llama decoder whose parameters' names start with `prefix`. `features` are the
/// units that make what is merged into its text.
void add_llama_decoder(SpecBuilder& builder, const TextConfig& text, const std::string& prefix,
                       const std::vector<int>& features, bool trainable);

/// The units of model.audio: Whisper's encoder and its projector.
void add_audio_encoder(SpecBuilder& builder, const ModelSpec& model, const Trainable& trainable);
/// linear, activation, linear to the language model's width, of parameters called `root`.
void add_projector_linears(SpecBuilder& builder, const ModelSpec& model, const std::string& root,
                           int64_t width, bool trainable);

}  // namespace zea::detail
