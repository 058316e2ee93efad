// SPDX-License-Identifier: Apache-2.0
#include "schedule/item_limits.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

/// Two keys of data: the least and the most of something that some encoders have.
struct LimitKeys {
  std::string least_key, most_key;
  int64_t DataOptions::*least, DataOptions::*most;
  const char* encoders;  ///< of these
  bool (*has)(const PatchInput&);
  PixelLimits (*limits)(const PatchInput&);
  void (*limit)(PatchInput&, const PixelLimits&);
  bool (*fills)(const PatchInput&);  ///< images become as large as they may: they have no least
};

const LimitKeys kLimits[] = {
    {"resized_min_pixels", "resized_max_pixels", &DataOptions::resized_min_pixels,
     &DataOptions::resized_max_pixels, "images of any size with such limits",
     [](const PatchInput& input) { return input.pixel_limits().has_value(); },
     [](const PatchInput& input) { return *input.pixel_limits(); },
     [](PatchInput& input, const PixelLimits& to) { input.limit(to); },
     [](const PatchInput& input) { return input.as<ImagesFilling>() != nullptr; }},
    {"min_tiles", "max_tiles", &DataOptions::min_tiles, &DataOptions::max_tiles, "tiles",
     [](const PatchInput& input) { return input.as<NearestTiles>() || input.as<SplitTiles>(); },
     [](const PatchInput& input) {
       return PixelLimits{input.tile_limits().least, input.tile_limits().most};
     },
     [](PatchInput& input, const PixelLimits& to) {
       input.limit_tiles({to.least, to.most});
     },
     [](const PatchInput& input) { return input.as<SplitTiles>() != nullptr; }},
    {"video_min_pixels", "video_max_pixels", &DataOptions::video_min_pixels,
     &DataOptions::video_max_pixels, "videos",
     [](const PatchInput& input) { return input.video.has_value(); },
     [](const PatchInput& input) { return input.video->pixels; },
     [](PatchInput& input, const PixelLimits& to) { input.video->pixels = to; },
     [](const PatchInput&) { return false; }},
};

bool is_set(const DataOptions& data, const LimitKeys& keys) {
  return data.*keys.least > 0 || data.*keys.most > 0;
}

bool has(const EncoderSpec& encoder, const LimitKeys& keys) {
  return encoder.modality() == Modality::Image && keys.has(encoder.patches());
}

void check_limits(Faults& faults, const DataOptions& data, const ModelSpec& model,
                  const LimitKeys& keys) {
  if (std::ranges::none_of(model.encoders, [&](const auto& encoder) { return has(encoder, keys); }))
    faults.add("data." + keys.least_key + " or data." + keys.most_key + " is set, but the model (" +
               model.family + ") has no encoder of " + keys.encoders + "; leave them out");
  for (const EncoderSpec& encoder : model.encoders) {
    if (!has(encoder, keys)) continue;
    const auto [least, most] = keys.limits(encoder.patches());
    if (least > most)
      faults.add("data." + keys.least_key + " = " + std::to_string(least) + " is more than data." +
                 keys.most_key + " = " + std::to_string(most));
    if (data.*keys.least > 0 && keys.fills(encoder.patches()))
      faults.add("data." + keys.least_key + " is set, but images of " + encoder.name +
                 " become as large as data." + keys.most_key + " allows; leave it out");
  }
}

}  // namespace

void set_item_limits(const DataOptions& data, ModelSpec& model) {
  for (EncoderSpec& encoder : model.encoders) {
    for (const LimitKeys& keys : kLimits) {
      if (!has(encoder, keys)) continue;
      auto& input = std::get<PatchInput>(encoder.input);
      const auto [least, most] = keys.limits(input);
      keys.limit(input, {data.*keys.least > 0 ? data.*keys.least : least,
                         data.*keys.most > 0 ? data.*keys.most : most});
    }
    auto* patches = std::get_if<PatchInput>(&encoder.input);
    if (patches && patches->video && data.max_frames > 0)
      patches->video->most_frames = data.max_frames;
    if (patches && data.image_backend != ImageBackend::Auto)
      patches->by_torchvision = data.image_backend == ImageBackend::Torchvision;
  }
}

void check_item_limits(Faults& faults, const DataOptions& data, const ModelSpec& model) {
  for (const LimitKeys& keys : kLimits)
    if (is_set(data, keys)) check_limits(faults, data, model, keys);
  const auto takes_videos = [](const EncoderSpec& encoder) {
    const auto* patches = std::get_if<PatchInput>(&encoder.input);
    return patches && patches->video;
  };
  for (const EncoderSpec& encoder : model.encoders) {
    const auto* patches = std::get_if<PatchInput>(&encoder.input);
    if (patches && patches->by_torchvision && patches->resampling == Resampling::Lanczos)
      faults.add(
          "data.image_backend = \"torchvision\", but images of " + encoder.name +
          " are resized by Lanczos' kernel, which zea has as PIL has it; allowed: auto, pil");
  }
  if (data.max_frames > 0 && std::ranges::none_of(model.encoders, takes_videos))
    faults.add("data.max_frames is set, but the model (" + model.family +
               ") has no encoder of videos; leave it out");
}

}  // namespace zea::detail
