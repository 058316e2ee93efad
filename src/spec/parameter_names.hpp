// SPDX-License-Identifier: Apache-2.0
// Canonical parameter names: those in the files of transformers' save_pretrained. Older files, and
// the names of a running model, have the prefixes in other orders or leave them out.
#pragma once

#include <string>

#include "spec/model_spec.hpp"

namespace zea {

/// Returns the canonical form of `name` in a model of `family`. llava:
/// "language_model.model.layers.0...", "language_model.lm_head.weight", "vision_tower.encoder...",
/// "multi_modal_projector..."; gpt2: "transformer.h.0...", "lm_head.weight"; qwen2_vl and
/// qwen2_5_vl: "model.layers.0...", "lm_head.weight", "visual.blocks.0..."; kimi_k25: the published
/// ones. Other names come back unchanged.
std::string canonical_parameter_name(const std::string& family, const std::string& name);

/// Returns the name of a parameter in transformers' running model.
std::string running_parameter_name(const std::string& family, const std::string& name);

/// The same for any model, also a composite one whose language model is a Mixtral.
std::string canonical_parameter_name(const ModelSpec& model, const std::string& name);
std::string running_parameter_name(const ModelSpec& model, const std::string& name);

/// Naming schemes of files other than the canonical one: that of the running model, and that of
/// the files that transformers 5 saves (Kimi-K2.5).
inline constexpr const char *kRunningNames = "running", *kSavedNames = "saved";

/// Returns the way that shows in a tensor's name; empty: the canonical one, or it does not show.
std::string spelling_of(const std::string& family, const std::string& name);
/// Returns the name of a parameter in files that are spelled in that way.
std::string name_in_files(const std::string& family, const std::string& spelling,
                          const std::string& name);

/// Convert between the names of ViT's parameters in files
/// ("encoder.layer.0.attention.attention.query") and in transformers' running model
/// ("layers.0.attention.q_proj"). Names of other encoders, and names with a prefix, are returned
/// unchanged.
std::string canonical_vit_name(const std::string& name);
std::string running_vit_name(const std::string& name);

/// Returns the name of an encoder's parameter without the prefix of a surrounding model:
/// "vision_model.", or "model.encoder." of audio.
std::string tower_parameter_name(const std::string& name, bool is_audio);

/// Returns whether old files contain this tensor although it is computed, not learned (position
/// ids, rotary frequencies, GPT-2's causal masks).
bool is_computed_buffer(const std::string& name);

/// Returns the sign of infinity that elements of a tensor may have, 0: none. Clipping bounds of
/// linears (SpecBuilder::add_linear) are infinite where nothing is clipped.
int sign_of_unbounded(const std::string& name);

}  // namespace zea
