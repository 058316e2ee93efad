// SPDX-License-Identifier: Apache-2.0
// The config.json of a tiny Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
#pragma once

#include <string>

#include "spec/model_spec.hpp"

namespace zea::testing {

/// Patches of 4 x 4 pixels; as transformers 5 writes it, or flat, as version 4 did.
std::string tiny_qwen2_vl_config(bool flat = false);

/// The same as Qwen2.5-VL: the first of its two blocks sees windows of 2 x 2 features.
std::string tiny_qwen2_5_vl_config();

/// Qwen3-VL, of four text layers, with features of two of its three blocks and 5 x 5 positions.
/// Qwen2.5-Omni's thinker: that tower and text, and clips of up to a second in chunks of 5
/// positions.
std::string tiny_qwen2_5_omni_config();
std::string tiny_qwen3_omni_config();
std::string tiny_qwen3_vl_config();
std::string tiny_qwen3_vl_moe_config();
/// GLM-4.5V: a dense block and one of 8 experts in groups, a table of 5 x 5 positions.
std::string tiny_glm4v_moe_config();
/// GLM-4.6V with that text.
std::string tiny_glm46v_config();
/// GLM-4.1V: dense blocks, whose heads rotate neighboring coordinates.
std::string tiny_glm4v_config();

/// Returns one of these configs with that number of heads, of 12 dimensions in the text and of 8 in
/// the encoder.
std::string with_heads(const std::string& config, int64_t heads, int64_t key_value_heads);

/// Images of at most 24 x 24 pixels, nine features, and videos of fewer.
void shrink_images(ModelSpec& model);

}  // namespace zea::testing
