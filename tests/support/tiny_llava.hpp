// SPDX-License-Identifier: Apache-2.0
// The tiny multimodal model of the engine's tests, and weights for it that are a pure function of
// seed, name and element.
#pragma once

#include <string>
#include <vector>

#include "spec/model_spec.hpp"
#include "zea/weights.hpp"

namespace zea::testing {

struct TinyLlava {
  bool tied = false;
  int64_t kv_heads = 2;
  int64_t layers = 2;
  int64_t vision_layers = 3;
  std::string feature_layer = "-2";
  std::string select = "default";
  int64_t heads = 4;
  int64_t head_dim = 6;  ///< of the decoder
  int64_t vision_heads = 2;
  int64_t vision_hidden = 16;
  int64_t vocabulary = 40;
  int64_t image_size = 8;
  bool projector_bias = true;
  bool biases = false;         ///< of the decoder's attention and MLP
  std::string text = "llama";  ///< the decoder's family: llama or phi3
  bool vision = true;
  bool siglip = false;   ///< no class token, no norm before the blocks
  bool pixtral = false;  ///< an encoder of images of any size, all of whose patches are features
  bool merges = false;   ///< the projector is Mistral 3's, as the family then is
  bool audio = false;
  bool gemma3 = false;  ///< a Gemma 3 of these sizes, whose images have 2 x 2 patches a feature
  int64_t audio_layers = 2;
  int64_t audio_heads = 2;
  int64_t audio_positions = 6;
};

/// config.json of a LlavaForConditionalGeneration, or a Mistral 3: patches of 4x4, heads of 6,
/// placeholder id 3; or of one with audio, whose clips' placeholder id is 4.
std::string tiny_llava_config(const TinyLlava& options = {});

/// config.json of a GPT-2 with 4 heads of 6.
std::string tiny_gpt2_config(int64_t vocabulary = 40);
/// The config with mixtures of few experts in its language model, and a shared expert with a gate.
std::string with_experts(const std::string& config, int64_t experts = 5, int64_t chosen = 2);
/// The config of a model whose files have one tensor for the same matrices of all experts of a
/// layer, in that order: "out_in" or "in_out".
std::string with_stacks(const std::string& config, const char* order);
/// The config with GLM-4.5's mixtures in its language model: 8 experts in 4 groups, of which a
/// token chooses in 2, with a bias; the first layer is dense.
std::string with_biased_experts(const std::string& config);
/// The config with gpt-oss's attention sinks, windows in every other layer, and `experts` with
/// biases in its language model.
std::string with_gpt_oss(const std::string& config, int64_t experts = 5);
/// The config with DeepSeek-V3's multi-head latent attention and experts in its language model.
std::string with_latent_attention(const std::string& config);
/// Parts of a Gemma 4 that its text has or not.
struct Gemma4Parts {
  int64_t experts = 0;  ///< beside each MLP
  /// It has six layers, of which three read keys and values of earlier ones and have wide MLPs, and
  /// each layer has an input of its own.
  bool is_like_e4b = false;
};
/// The config with the text of a Gemma 4, whose last layer and every other one before it have no
/// window, larger heads and one KV head.
std::string with_gemma4_text(const std::string& config, const Gemma4Parts& parts = {});

/// Small values around the initial ones: 1 for norms, 0 for the rest.
class FilledSource : public WeightsSource {
 public:
  FilledSource(const ModelSpec& model, std::string config_json, uint64_t seed);

  std::string describe() const override { return "filled weights"; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_json_; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override;

 private:
  const ModelSpec& model_;
  std::string config_json_;
  uint64_t seed_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace zea::testing
