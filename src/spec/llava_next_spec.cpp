// SPDX-License-Identifier: Apache-2.0
// LLaVA-NeXT (LLaVA-1.6): a LLaVA whose images are fitted into one of several resolutions of whole
// tiles. The whole image comes first; of the tiles what shows the image becomes features, row by
// row, and each row ends with one that is learned. LLaVA-OneVision (arXiv:2408.03326) has more
// resolutions and resamples features of too many tiles; of several images none is cut. Each frame
// of its videos is one tile with a quarter of the features.
#include <charconv>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kSideOfOneVision = 384;
constexpr int64_t kMostTilesASide = 6;

/// Returns the default resolutions of LLaVA-OneVision.
std::vector<ImageSize> usual_resolutions() {
  std::vector<ImageSize> all;
  for (int64_t high = 1; high <= kMostTilesASide; ++high)
    for (int64_t wide = 1; wide <= kMostTilesASide; ++wide)
      all.push_back({high * kSideOfOneVision, wide * kSideOfOneVision});
  return all;
}

/// "anyres_max_9": 9
int64_t read_most_tiles(const ConfigReader& config) {
  const std::string begin = "anyres_max_",
                    found = config.text("vision_aspect_ratio", "anyres_max_9");
  constexpr int64_t kMost = 1 << 20;
  int64_t tiles = 0;
  if (found.starts_with(begin)) {
    const char* const last = found.data() + found.size();
    const auto [end, fault] = std::from_chars(found.data() + begin.size(), last, tiles);
    if (fault != std::errc() || end != last) tiles = 0;
  }
  if (tiles < 1 || tiles > kMost)
    config.refuse("vision_aspect_ratio", found,
                  "anyres_max_ and a number of tiles, as anyres_max_9");
  return tiles;
}

/// `usual`: the decoder's family where the config names none.
ModelSpec make_fitted(const ConfigReader& config, const Trainable& trainable,
                      const ImageDefaults& defaults, const std::string& usual) {
  config.ignore_keys({"ignore_index", "image_seq_length", "vocab_size"});
  config.require_boolean("use_image_newline_parameter", true);
  return make_with_images(config, trainable,
                          {"vision", "vision_tower.", "multi_modal_projector.", "image_newline"},
                          defaults, usual);
}

}  // namespace

ModelSpec make_llava_next(const ConfigReader& config, const Trainable& trainable) {
  const std::vector<ImageSize> usual{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  return make_fitted(config, trainable, {.resolutions = usual}, "llama");
}

ModelSpec make_llava_onevision(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model = make_fitted(config, trainable,
                                {.encoder = "siglip_vision_model",
                                 .token = 151646,
                                 .layer = -1,
                                 .select = "full",
                                 .resolutions = usual_resolutions(),
                                 .text_ties = true},
                                "qwen2");
  EncoderSpec& vision = model.encoders.front();
  vision.video_placeholder =
      config.integer("video_token_id", config.integer("video_token_index", 151647));
  vision.patches().video = VideoInput{};
  FittedTiles& tiles = *vision.patches().as<FittedTiles>();
  tiles.most_tiles = read_most_tiles(config);
  tiles.fits_alone = true;
  vision.projector.shrinks = true;
  return model;
}

}  // namespace zea::detail
