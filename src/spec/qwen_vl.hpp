// SPDX-License-Identifier: Apache-2.0
// Towers and texts of the Qwen-VL families, also as other families have them.
#pragma once

#include <string>
#include <vector>

#include "spec/families.hpp"

namespace zea::detail {

/// Reads the tower of the Qwen-VL families: patches of frame pairs of images of any size, axial
/// RoPE, merged squares, and blocks whose width is the config's `width_key`.
struct QwenVisionDefaults {
  int64_t layers, patch;
  PixelLimits pixels;        ///< of the family's processor
  PixelLimits frame_pixels;  ///< for videos
};
VisionEncoder read_qwen_vision_tower(const ConfigReader& config, const BlockSpec& of_family,
                                     const char* width_key, const QwenVisionDefaults& defaults);
/// Reads the tower and the text of Qwen2.5-VL, also as Qwen2.5-Omni has them.
VisionEncoder read_windowed_visual(const ConfigReader& config);
/// Returns the text's part of a composite config, or all of it in files that have no part. Some
/// files have the text's keys in both places; those above are not read.
ConfigReader text_of(const ConfigReader& config);
Decoder read_qwen_vl_text(const ConfigReader& config, const LlamaDefaults& defaults,
                          int64_t windows_from);
/// Throws unless the features have the width of the language model, `hidden`.
void require_width(const ConfigReader& of_vision, const char* key, int64_t hidden);
/// Adds a projector of concatenated tokens, whose parameters are named `root` and these names.
struct MergerNames {
  const char *norm, *linear_1, *linear_2;
};
inline constexpr MergerNames kWindowedMerger{"ln_q", "mlp.0", "mlp.2"};
void add_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                const MergerNames& names, int64_t hidden, bool trainable);

/// Reads the tower of Qwen3-VL, and the blocks behind which it takes features for blocks of the
/// decoder, of which there are `takers`; without `is_deep` there must be none.
VisionEncoder read_deep_visual(const ConfigReader& config);
std::vector<int64_t> read_depths(const ConfigReader& config, int64_t layers, int64_t takers,
                                 bool is_deep);
/// Adds its projectors, whose parameters begin with `root`. Returns the units of the features:
/// those that are merged, then those of each depth.
struct DeepMergers {
  MergerNames each;
  const char* deep;  ///< precedes the numbers of those of depths
};
std::vector<int> add_deep_mergers(SpecBuilder& builder, const EncoderSpec& vision,
                                  const std::string& root, const DeepMergers& names,
                                  const std::vector<int64_t>& depths,
                                  const std::vector<int>& states, int64_t hidden, bool trainable);
/// Reads the text of Qwen3-VL, also as Qwen3-Omni has it.
Decoder read_interleaved_text(const ConfigReader& config, const LlamaDefaults& defaults);
/// Makes a composite of a decoder and Qwen3-VL's tower of images and videos, whose config is
/// "vision_config". With `is_deep` features of several depths are added after blocks.
struct DeepDefaults {
  int64_t image_token, video_token;
  bool is_deep;
};
ModelSpec make_with_deep_tower(const ConfigReader& config, Decoder decoder,
                               const Trainable& trainable, const DeepDefaults& defaults);

}  // namespace zea::detail
