// SPDX-License-Identifier: Apache-2.0
// One spelling of a model's parameter names: that of the files transformers' save_pretrained
// writes. Older files, and the names a running model uses, put the prefixes in other orders or
// leave them out.
#pragma once

#include <string>

namespace zea {

/// The file's spelling of `name` in a model of `family`. llava: "language_model.model.layers.0...",
/// "language_model.lm_head.weight", "vision_tower.encoder...", "multi_modal_projector..."; gpt2:
/// "transformer.h.0...", "lm_head.weight"; qwen2_vl and
/// qwen2_5_vl: "model.layers.0...", "lm_head.weight", "visual.blocks.0...". Other names come back
/// unchanged.
std::string canonical_parameter_name(const std::string& family, const std::string& name);

/// The other way: what transformers' running model calls that parameter.
std::string running_parameter_name(const std::string& family, const std::string& name);

/// What files of ViT call a parameter that transformers' running model calls
/// "layers.0.attention.q_proj": "encoder.layer.0.attention.attention.query"; and the other way.
/// Names of other encoders, and with anything before them, come back unchanged.
std::string canonical_vit_name(const std::string& name);
std::string running_vit_name(const std::string& name);

/// The name of an encoder's parameter without what models around it have before it:
/// "vision_model.", or, of one of sound, "model.encoder.".
std::string tower_parameter_name(const std::string& name, bool is_audio);

/// True for tensors that old files carry although they are computed, not learnt (position ids,
/// rotary frequencies, GPT-2's causal masks).
bool is_computed_buffer(const std::string& name);

}  // namespace zea
