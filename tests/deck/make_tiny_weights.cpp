// SPDX-License-Identifier: Apache-2.0
// Writes the files that the deck tests plan with: a weights file of a Llava of two small blocks
// each, all weights zero, and the configs of a small GPT-2 and a small GLM-4.5.
#include <fstream>
#include <iostream>

#include "io/weights_file.hpp"
#include "spec/model_spec.hpp"

namespace {

constexpr const char* kConfig = R"({
  "model_type": "llava", "image_token_index": 31, "vision_feature_layer": -1,
  "vision_feature_select_strategy": "default", "projector_hidden_act": "gelu",
  "vision_config": {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
  "text_config": {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32}
})";

constexpr const char* kGpt2 =
    R"({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 32})";

constexpr const char* kGlm = R"({"model_type": "glm4_moe", "hidden_size": 16,
  "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2,
  "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32})";

void write_tiny_weights(const std::string& path) {
  zea::WeightsWriter writer(path, kConfig);
  const zea::ModelSpec model = zea::make_model_spec(kConfig);
  for (const zea::ParamSpec& param : model.params)
    writer.add({param.name, param.shape, zea::DType::Float32});
  for (const zea::ParamSpec& param : model.params) {
    const std::vector<float> zeros(static_cast<size_t>(zea::num_elements(param.shape)));
    writer.write(param.name, 0, static_cast<int64_t>(zeros.size()), zeros.data());
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4) throw zea::DeckError("usage: make_tiny_weights file.h5 gpt2.json glm.json");
    write_tiny_weights(argv[1]);
    std::ofstream(argv[2]) << kGpt2;
    std::ofstream(argv[3]) << kGlm;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
