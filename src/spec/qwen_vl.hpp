// SPDX-License-Identifier: Apache-2.0
// Vision encoders and language models of the Qwen-VL families, which other families reuse.
#pragma once

#include <string>
#include <vector>

#include "spec/families.hpp"

namespace zea::detail {

/// Reads the vision encoder of the Qwen-VL families: patches of two frames, images of any size,
/// axial RoPE, a projector that merges squares of patches. `width_key`: the key of its hidden size.
struct QwenVisionDefaults {
  int64_t layers, patch;
  PixelLimits pixels;        ///< of the family's processor
  PixelLimits frame_pixels;  ///< for videos
};
VisionEncoder read_qwen_vision_tower(const ConfigReader& config, const BlockSpec& of_family,
                                     const char* width_key, const QwenVisionDefaults& defaults);
/// Reads the vision encoder and the language model of Qwen2.5-VL, which Qwen2.5-Omni shares.
VisionEncoder read_windowed_visual(const ConfigReader& config);
/// Returns text_config of a composite config, or the whole config if there is no text_config. If a
/// file has the keys of the language model in both places, those at the top level are ignored.
ConfigReader text_of(const ConfigReader& config);
Decoder read_qwen_vl_text(const ConfigReader& config, const LlamaDefaults& defaults,
                          int64_t windows_from);
/// Throws ConfigError unless the width of the features equals that of the language model, `hidden`.
void require_width(const ConfigReader& of_vision, const char* key, int64_t hidden);
/// Adds a projector that concatenates neighboring tokens. Parameter names are `root` + MergerNames.
struct MergerNames {
  const char *norm, *linear_1, *linear_2;
};
inline constexpr MergerNames kWindowedMerger{"ln_q", "mlp.0", "mlp.2"};
void add_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                const MergerNames& names, int64_t hidden, bool trainable);

/// read_deep_visual() reads the vision encoder of Qwen3-VL; read_depths() reads the indices of the
/// encoder blocks whose outputs are added to decoder blocks (DeepStack). `layers`, `takers`: blocks
/// of the encoder and of the decoder. Without `is_deep` the list must be empty.
VisionEncoder read_deep_visual(const ConfigReader& config);
std::vector<int64_t> read_depths(const ConfigReader& config, int64_t layers, int64_t takers,
                                 bool is_deep);
/// Adds the projectors of Qwen3-VL's encoder, whose parameter names begin with `root`. Returns
/// their units: the main projector, then the DeepStack projector of each depth.
struct DeepMergers {
  MergerNames each;
  const char* deep;  ///< prefix of DeepStack projectors, before their number
};
std::vector<int> add_deep_mergers(SpecBuilder& builder, const EncoderSpec& vision,
                                  const std::string& root, const DeepMergers& names,
                                  const std::vector<int64_t>& depths,
                                  const std::vector<int>& states, int64_t hidden, bool trainable);
/// Reads the language model of Qwen3-VL, which Qwen3-Omni shares.
Decoder read_interleaved_text(const ConfigReader& config, const LlamaDefaults& defaults);
/// Makes a composite of a decoder and Qwen3-VL's vision encoder ("vision_config"). With `is_deep`
/// features of several encoder depths are added after decoder blocks (DeepStack).
struct DeepDefaults {
  int64_t image_token, video_token;
  bool is_deep;
};
ModelSpec make_with_deep_tower(const ConfigReader& config, Decoder decoder,
                               const Trainable& trainable, const DeepDefaults& defaults);

}  // namespace zea::detail
