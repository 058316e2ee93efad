// SPDX-License-Identifier: Apache-2.0
#include "support/tiny_gemma4.hpp"

#include <nlohmann/json.hpp>

#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing {

std::string tiny_gemma4_config(const TinyLlava& options, bool clips, const Gemma4Parts& parts) {
  nlohmann::json text =
      nlohmann::json::parse(with_gemma4_text(tiny_llava_config(options), parts)).at("text_config");
  if (!parts.is_like_e4b) text["use_bidirectional_attention"] = "vision";
  const nlohmann::json tower{{"model_type", "gemma4_vision"},
                             {"hidden_size", options.vision_hidden},
                             {"intermediate_size", 24},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", options.vision_heads},
                             {"num_key_value_heads", options.vision_heads},
                             {"head_dim", 8},
                             {"patch_size", 4},
                             {"pooling_kernel_size", 2},
                             {"position_embedding_size", 18},
                             {"use_clipped_linears", clips},
                             {"standardize", !clips}};
  nlohmann::json config{{"model_type", "gemma4"}, {"image_token_id", 3},
                        {"video_token_id", 4},    {"tie_word_embeddings", options.tied},
                        {"text_config", text},    {"vision_config", tower}};
  if (options.audio)
    config.update({{"audio_token_id", 6},
                   {"audio_config",
                    {{"model_type", "gemma4_audio"},
                     {"hidden_size", 8 * options.audio_heads},
                     {"num_hidden_layers", options.audio_layers},
                     {"num_attention_heads", options.audio_heads},
                     {"attention_context_left", 5},
                     {"subsampling_conv_channels", {8, 3}},
                     {"output_proj_dims", 20},
                     {"use_clipped_linears", clips}}}});
  return config.dump();
}

void shrink_gemma4(ModelSpec& model) {
  shrink_images(model);
  for (EncoderSpec& encoder : model.encoders)
    if (encoder.modality() == Modality::Audio) std::get<MelInput>(encoder.input).positions = 9;
}

}  // namespace zea::testing
