// SPDX-License-Identifier: Apache-2.0
// The preprocessing of images by a model's directory: the image_processor that transformers writes
// into preprocessor_config.json or processor_config.json. Its class, or else the family, has the
// defaults.
#include <algorithm>
#include <array>

#include "spec/families.hpp"
#include "spec/processor_pixels.hpp"

namespace zea::detail {
namespace {

/// The sides in a size, in pixels, or areas; 0: not given.
struct Sides {
  int64_t height = 0, width = 0, shortest = 0, longest = 0;

  bool operator==(const Sides&) const = default;
  bool is_square_of(int64_t side) const { return height == side && width == side; }
  bool is_shortest() const { return shortest > 0 && height == 0 && width == 0 && longest == 0; }
};

/// A number alone is the side of a square, or the shorter side.
Sides read_sides(const ConfigReader& config, const char* key, bool is_square) {
  if (!config.has(key)) return {};
  if (!config.is_object(key)) {
    const int64_t side = config.positive(key, 0);
    return is_square ? Sides{.height = side, .width = side} : Sides{.shortest = side};
  }
  const ConfigReader sides = config.object(key);
  const auto read = [&](const char* side) { return sides.has(side) ? sides.positive(side, 0) : 0; };
  return {read("height"), read("width"), read("shortest_edge"), read("longest_edge")};
}

/// Throws unless the processor does a step that zea always does.
void require_step(const ConfigReader& config, const char* key) {
  if (config.is_null(key))
    config.refuse(key, "null", "true (null turns it off, which is not built yet)");
  config.require_boolean(key, true);
}

void require_equal(const ConfigReader& config, const char* key, int64_t only) {
  const int64_t found = config.integer(key, only);
  if (found != only)
    config.refuse(key, std::to_string(found),
                  std::to_string(only) + ", as config.json has it of the encoder");
}

std::string of_table(int64_t side) {
  return std::to_string(side) + " x " + std::to_string(side) +
         ", the encoder's image_size (tables of positions are not interpolated)";
}

/// A processor's settings of square images.
struct SquareSizes {
  Sides crop, size;
  bool crops = false;
};

SquareSizes read_square_sizes(const ConfigReader& config, const SquareImages& usual) {
  const ProcessorClass* of = processor_class(config);
  const bool crops = does(config, "do_center_crop", of ? of->crops : usual.crops);
  const bool squares =
      config.boolean("default_to_square", of ? of->squares : !usual.crops && !crops);
  return {read_sides(config, "crop_size", true), read_sides(config, "size", squares), crops};
}

/// Reads whether a whole image becomes a square of `side`, or its center after its shorter side was
/// resized. `allowed` names the square in refusals.
void read_square(const ConfigReader& config, const SquareSizes& sizes, int64_t side,
                 const std::string& allowed, SquareImages& square) {
  const auto& [crop, size, crops] = sizes;
  if (crops && config.has("crop_size") && !crop.is_square_of(side))
    config.refuse("crop_size", config.dump("crop_size"), allowed);
  if (!crops && square.crops && !config.has("size"))
    config.refuse("do_center_crop", config.is_null("do_center_crop") ? "null" : "false",
                  "true, or a size of " + allowed);
  square.crops = crops && !size.is_square_of(side);
  if (!config.has("size") || size.is_square_of(side)) return;
  if (!crops)
    config.refuse("size", config.dump("size"),
                  allowed + (size.is_shortest() ? "; without do_center_crop the length of the "
                                                  "shorter side makes no square"
                                                : ""));
  if (!size.is_shortest() || size.shortest < side)
    config.refuse(
        "size", config.dump("size"),
        "a shortest_edge of " + std::to_string(side) + " or more (crop_size), or " + allowed);
  square.shortest_edge = size.shortest;
}

/// Returns the side of a processor's squares, which may differ from the encoder's.
int64_t read_side(const ConfigReader& config, const SquareSizes& sizes, const PatchInput& patches) {
  constexpr int64_t kUsualCrop = 224;  // of all of transformers' classes that crop
  const auto& [crop, size, crops] = sizes;
  if (!config.has("size") && !(crops && config.has("crop_size"))) return patches.image_size;
  if (crops && !config.has("crop_size")) return kUsualCrop;
  const Sides& square = crops ? crop : size;
  const char* key = crops ? "crop_size" : "size";
  if (square.height < 1 || !square.is_square_of(square.height))
    config.refuse(key, config.dump(key),
                  "a height and an equal width, as the encoder takes squares");
  return square.height;
}

/// Scales the processor's squares to the encoder's, so that the center crop stays the same part of
/// an image. Returns a note on the change; empty: they have the same size.
std::string read_scaled_square(const ConfigReader& config, PatchInput& patches) {
  require_step(config, "do_resize");
  config.require_boolean("do_pad", false);
  SquareImages& images = *patches.as<SquareImages>();
  const SquareSizes sizes = read_square_sizes(config, images);
  const int64_t side = read_side(config, sizes, patches), to = patches.image_size;
  const std::string square = std::to_string(side) + " x " + std::to_string(side);
  read_square(config, sizes, side, square, images);
  if (side == to) return "";
  constexpr int64_t kMost = int64_t{1} << 30;  // as of numbers that are read
  const int64_t shortest = images.shortest_edge;
  images.shortest_edge = (2 * shortest * to + side) / (2 * side);  // rounded
  if (images.shortest_edge > kMost)
    config.refuse("size", config.dump("size"), "a shortest_edge of a few times the crop_size");
  return "its images of " + square + " become " + std::to_string(to) + " x " + std::to_string(to) +
         ", the encoder's image_size" +
         (shortest > side ? ", of a shorter side of " + std::to_string(images.shortest_edge) +
                                " in place of " + std::to_string(shortest)
                          : "");
}

/// Checks the size of a tile; a crop of it is the whole tile.
void read_tile(const ConfigReader& config, const PatchInput& patches) {
  const int64_t side = patches.image_size;
  for (const char* key : {"size", "crop_size"}) {
    const Sides sides = read_sides(config, key, true);
    const bool fits = sides.is_square_of(side) || (sides.is_shortest() && sides.shortest == side);
    if (config.has(key) && !fits) config.refuse(key, config.dump(key), of_table(side));
  }
}

void read_tiles(const ConfigReader& config, const PatchInput& patches, TileLimits& tiles) {
  read_tile(config, patches);
  config.require_boolean("do_center_crop", false);
  // InternVLProcessor cuts tiles whatever the image processor says.
  config.ignore_keys({"crop_to_patches"});
  tiles = {.least = config.positive("min_patches", tiles.least),
           .most = config.positive("max_patches", tiles.most)};
  if (tiles.least > tiles.most)
    config.refuse("min_patches", std::to_string(tiles.least),
                  "1 to max_patches = " + std::to_string(tiles.most));
}

/// The language model's text has as many placeholders as config.json's resolutions ask for.
void read_fitting(const ConfigReader& config, const PatchInput& patches, const FittedTiles& tiles) {
  read_tile(config, patches);
  config.ignore_keys({"do_center_crop"});
  config.require_text("aspect_ratio_setting", "anyres");
  if (tiles.fits_alone && !does(config, "do_normalize", true))
    config.refuse("do_normalize", config.dump("do_normalize"),
                  "true (images that share a sample are padded with the mean color)");
  if (config.has("image_grid_pinpoints") &&
      config.sizes("image_grid_pinpoints") != tiles.resolutions)
    config.refuse("image_grid_pinpoints", config.dump("image_grid_pinpoints"),
                  "those of config.json, by which the model orders its features");
}

/// Reads the limits of areas of Qwen2-VL's processors, which may call them edges.
PixelLimits read_areas(const ConfigReader& config, const PixelLimits& usual) {
  const Sides size = read_sides(config, "size", true);
  if (config.has("size") && (size.height > 0 || size.width > 0))
    config.refuse("size", config.dump("size"), "shortest_edge and longest_edge, pixels in all");
  const auto either = [](int64_t found, int64_t usual) { return found > 0 ? found : usual; };
  const auto in_size = [&](const char* key, int64_t usual) {
    return config.is_object("size") ? config.object("size").positive(key, usual) : usual;
  };
  const PixelLimits limits{
      .least =
          config.positive("min_pixels", in_size("min_pixels", either(size.shortest, usual.least))),
      .most =
          config.positive("max_pixels", in_size("max_pixels", either(size.longest, usual.most)))};
  if (limits.least > limits.most)
    config.refuse(config.has("min_pixels") ? "min_pixels" : "size", std::to_string(limits.least),
                  "at most the largest number of pixels, " + std::to_string(limits.most));
  return limits;
}

void require_patches(const ConfigReader& config, const PatchInput& patches) {
  config.require_boolean("do_center_crop", false);
  require_equal(config, "patch_size", patches.patch_size);
  require_equal(config, "temporal_patch_size", patches.frames);
  require_equal(config, "merge_size", patches.block);
}

/// Reads the limits of pixels. Some processors count a pixel once per frame of a temporal patch.
void read_limits(const ConfigReader& config, PatchInput& patches) {
  require_patches(config, patches);
  const auto* within = patches.as<ImagesWithin>();
  const int64_t frames = within && within->counts_frames ? patches.frames : 1;
  const PixelLimits usual = *patches.pixel_limits();
  const PixelLimits all =
      read_areas(config, {.least = usual.least * frames, .most = usual.most * frames});
  for (const int64_t pixels : {all.least, all.most})
    if (pixels % frames != 0)
      config.refuse("size", std::to_string(pixels),
                    "multiples of temporal_patch_size = " + std::to_string(frames));
  patches.limit({.least = all.least / frames, .most = all.most / frames});
}

/// Throws unless the patch is the encoder's, or the square of patches that become one feature, to
/// which PixtralProcessor changes it.
void require_pixtral_patch(const ConfigReader& config, const PatchInput& patches) {
  if (!config.has("patch_size")) return;
  const Sides found = read_sides(config, "patch_size", true);
  const int64_t merged = patches.patch_size * patches.block;
  if (found.is_square_of(patches.patch_size) || found.is_square_of(merged)) return;
  config.refuse("patch_size", config.dump("patch_size"),
                std::to_string(patches.patch_size) +
                    (merged == patches.patch_size ? "" : " or " + std::to_string(merged)) +
                    ", as config.json has it of the encoder");
}

/// Reads the longest side of Pixtral's processor.
void read_longest(const ConfigReader& config, PatchInput& patches) {
  config.require_boolean("do_center_crop", false);
  require_pixtral_patch(config, patches);
  if (!config.has("size")) return;
  const Sides size = read_sides(config, "size", true);
  const int64_t longest = size.longest > 0 ? size.longest : size.height;
  const bool is_one = size.shortest == 0 && (size.longest > 0 || size.height == size.width);
  if (!is_one || longest < 1 || longest > patches.image_size)
    config.refuse("size", config.dump("size"),
                  "a longest_edge of at most " + std::to_string(patches.image_size) +
                      ", the encoder's image_size");
  patches.image_size = longest;
}

void read_pan_and_scan(const ConfigReader& config, PatchInput& patches) {
  constexpr int64_t kUsual = 4;  // of Gemma3Processor
  const int64_t most = config.positive("pan_and_scan_max_num_crops", kUsual);
  const int64_t side = config.positive("pan_and_scan_min_crop_size", PanAndScan().least_side);
  const double ratio =
      config.number("pan_and_scan_min_ratio_to_activate", PanAndScan().least_ratio);
  auto* square = patches.as<SquareImages>();
  if (!square || !square->pan_and_scan) return config.require_boolean("do_pan_and_scan", false);
  if (!config.boolean("do_pan_and_scan", false)) return;
  constexpr int64_t kMost = 64;
  if (most < 2 || most > kMost)
    config.refuse("pan_and_scan_max_num_crops", std::to_string(most),
                  "2 to " + std::to_string(kMost));
  square->pan_and_scan = {.most = most, .least_side = side, .least_ratio = ratio};
}

/// Reads the longer side that SmolVLM's frames have before they become tiles.
int64_t read_frame_side(const ConfigReader& config, int64_t usual) {
  constexpr int64_t kMost = 4096;
  const bool is_sampled = config.has("video_sampling") && !config.is_null("video_sampling");
  Sides sides;
  if (is_sampled) {
    const ConfigReader sampling = config.object("video_sampling");
    sampling.ignore_keys({"fps", "max_frames"});
    sides = read_sides(sampling, "video_size", false);
  }
  // As in transformers, `size` goes before the size of sampled videos.
  if (config.has("size")) sides = read_sides(config, "size", true);
  if (sides == Sides{}) return usual;
  if (sides.longest < 1 || sides.longest > kMost)
    config.refuse(config.has("size") ? "size" : "video_sampling",
                  config.dump(config.has("size") ? "size" : "video_sampling"),
                  "a longest_edge of 1 to " + std::to_string(kMost));
  return sides.longest;
}

/// Reads the longest side of Idefics 3's and SmolVLM's processors, which becomes whole tiles.
void read_split(const ConfigReader& config, const PatchInput& patches, SplitTiles& split) {
  constexpr int64_t kMost = 4096;
  config.ignore_keys({"do_center_crop", "do_pad", "return_row_col_info", "video_sampling"});
  require_step(config, "do_image_splitting");
  const int64_t tile = patches.image_size;
  const Sides most = read_sides(config, "max_image_size", true);
  if (config.has("max_image_size") && most.longest != tile)
    config.refuse("max_image_size", config.dump("max_image_size"),
                  "a longest_edge of " + std::to_string(tile) + ", the encoder's image_size");
  if (!config.has("size")) return;
  const int64_t longest = read_sides(config, "size", true).longest;
  if (longest < tile || longest % tile != 0 || longest > kMost)
    config.refuse("size", config.dump("size"),
                  "a longest_edge that is a multiple of " + std::to_string(tile) + " up to " +
                      std::to_string(kMost));
  split.most_tiles = longest / tile * (longest / tile);
}

/// Reads the maximum features of an image, or of a frame, from Gemma 4's processors; transformers
/// allows only some numbers.
PixelLimits read_soft_tokens(const ConfigReader& config, const PatchInput& patches,
                             const PixelLimits& usual) {
  constexpr std::array<int64_t, 5> kAllowed{70, 140, 280, 560, 1120};
  config.ignore_keys({"do_center_crop", "do_pad", "image_seq_length", "size"});
  require_equal(config, "patch_size", patches.patch_size);
  require_equal(config, "pooling_kernel_size", patches.block);
  const int64_t step = patches.patch_size * patches.block;
  const int64_t most = config.positive("max_soft_tokens", usual.most / (step * step));
  if (config.has("max_soft_tokens") && std::ranges::count(kAllowed, most) == 0)
    config.refuse("max_soft_tokens", std::to_string(most), "70, 140, 280, 560, 1120");
  return {.most = most * step * step};
}

/// Reads the most patches of SigLIP 2's processor.
void read_filling(const ConfigReader& config, PatchInput& patches) {
  constexpr int64_t kMost = int64_t{1} << 20;
  config.ignore_keys({"do_center_crop", "do_pad", "size"});
  require_equal(config, "patch_size", patches.patch_size);
  const int64_t square = patches.patch_size * patches.patch_size;
  const int64_t most = config.positive("max_num_patches", patches.pixel_limits()->most / square);
  if (most > kMost)
    config.refuse("max_num_patches", std::to_string(most), "1 to " + std::to_string(kMost));
  patches.limit({.most = most * square});
}

/// Reads the limits of MoonViT's image and video processors, in patches.
ImagesPadded read_padding(const ConfigReader& config, const PatchInput& patches,
                          ImagesPadded padded) {
  constexpr int64_t kMost = int64_t{1} << 20;
  // Published directories keep their own processor's settings there, which transformers leaves out.
  config.ignore_keys({"media_proc_cfg"});
  require_equal(config, "patch_size", patches.patch_size);
  require_equal(config, "merge_size", patches.block);
  const int64_t square = patches.patch_size * patches.patch_size;
  const int64_t most = config.positive("max_patches", padded.pixels.most / square);
  if (most > kMost)
    config.refuse("max_patches", std::to_string(most), "1 to " + std::to_string(kMost));
  if (config.has("size")) {
    const ConfigReader size = config.object("size");
    padded.side = size.positive("max_height", padded.side);
    if (padded.side > kMost || size.positive("max_width", padded.side) != padded.side)
      config.refuse("size", config.dump("size"),
                    "equal max_height and max_width, in patches, up to " + std::to_string(kMost));
  }
  padded.pixels = {.most = most * square};
  return padded;
}

/// Reads the number of frames of a chunk and their size limits.
void read_padded_frames(const ConfigReader& config, const PatchInput& patches, VideoInput& video) {
  const ImagesPadded padded = read_padding(config, patches, {video.pixels, video.most_side});
  video.pixels = padded.pixels;
  video.most_side = padded.side;
  video.most_frames = config.positive("temporal_patch_size", video.most_frames);
  if (video.most_frames > video.time_positions)
    config.refuse("temporal_patch_size", std::to_string(video.most_frames),
                  "1 to " + std::to_string(video.time_positions) + ", the encoder's pos_emb_time");
}

/// Reads a processor's settings of the image size, by the tiling policy.
struct ShapeReader {
  const ConfigReader& config;
  PatchInput& patches;

  void operator()(SquareImages& square) const {
    config.require_boolean("do_pad", false);
    read_square(config, read_square_sizes(config, square), patches.image_size,
                of_table(patches.image_size), square);
  }
  void operator()(ImagesWithin&) const {
    config.ignore_keys({"do_pad"});
    read_limits(config, patches);
  }
  void operator()(ImagesBelow&) const {
    config.ignore_keys({"do_pad"});
    read_longest(config, patches);
  }
  void operator()(ImagesFilling& filling) const {
    if (filling.shrinks_sides)
      patches.limit(read_soft_tokens(config, patches, filling.pixels));
    else
      read_filling(config, patches);
  }
  void operator()(ImagesPadded& padded) const {
    padded = read_padding(config, patches, padded);
    patches.limit(padded.pixels);
  }
  void operator()(NearestTiles& nearest) const {
    config.require_boolean("do_pad", false);
    read_tiles(config, patches, nearest.tiles);
  }
  void operator()(SplitTiles& split) const { read_split(config, patches, split); }
  void operator()(FittedTiles& fitted) const {
    config.ignore_keys({"do_pad"});
    read_fitting(config, patches, fitted);
  }
};

}  // namespace

void read_video_processor(const ConfigReader& config, EncoderSpec& encoder) {
  PatchInput& patches = encoder.patches();
  pass_over_classes(config);
  // Frames are sampled where data sets are packed.
  config.ignore_keys({"do_sample_frames", "fps", "initial_shift", "max_duration", "max_image_size",
                      "max_video_tokens", "min_frames", "num_frames", "return_metadata",
                      "video_metadata"});
  require_step(config, "do_resize");
  if (patches.as<SplitTiles>())
    config.ignore_keys({"do_pad"});  // to the longest video of a batch
  else
    config.require_boolean("do_pad", false);
  config.require_boolean("cap_pixels_per_frame", false);
  ImageColours colours = patches.colours;
  read_pixel_range(config, true, patches.doubles_pixels, colours);
  if (colours != patches.colours)
    config.refuse("image_mean, image_std or rescale_factor", config.dump("image_mean"),
                  "those of images");
  if (read_resampling(config, patches.resampling) != patches.resampling)
    config.refuse("resample", config.dump("resample"), "that of images");
  VideoInput& video = *patches.video;
  if (patches.as<ImagesFilling>()) {
    video.pixels = read_soft_tokens(config, patches, video.pixels);
    video.most_frames = config.positive("num_frames", video.most_frames);
  } else if (patches.as<SplitTiles>()) {
    video.longest_side = read_frame_side(config, video.longest_side);
  } else if (patches.as<ImagesPadded>()) {
    read_padded_frames(config, patches, video);
    return config.refuse_unknown();
  } else if (!patches.any_size()) {
    read_tile(config, patches);
    config.require_boolean("do_center_crop", false);
  } else {
    require_patches(config, patches);
    const PixelLimits said = read_areas(config, video.pixels);
    if (!video.has_own_limits) video.pixels = said;
  }
  video.most_frames = config.positive("max_frames", video.most_frames);
  config.refuse_unknown();
}

void read_video_limits(const ConfigReader& of_images, EncoderSpec& encoder) {
  const PatchInput& patches = encoder.patches();
  VideoInput& video = *encoder.patches().video;
  if (patches.as<SplitTiles>()) video.longest_side = read_frame_side(of_images, video.longest_side);
  // Images and frames differ in their most features, or every frame becomes a square.
  if (patches.as<ImagesFilling>() || !patches.any_size() || video.has_own_limits) return;
  if (patches.as<ImagesPadded>()) return read_padded_frames(of_images, patches, video);
  video.pixels = read_areas(of_images, video.pixels);
}

void read_image_processor(const ConfigReader& config, EncoderSpec& encoder) {
  PatchInput& patches = encoder.patches();
  read_pixel_values(config, patches);
  read_pan_and_scan(config, patches);
  require_step(config, "do_resize");
  std::visit(ShapeReader{config, patches}, patches.tiling);
  config.refuse_unknown();
}

std::string read_part_processor(const ConfigReader& config, EncoderSpec& encoder) {
  PatchInput& patches = encoder.patches();
  if (patches.any_size()) {
    read_image_processor(config, encoder);
    return "";
  }
  read_pixel_values(config, patches);
  read_pan_and_scan(config, patches);
  std::string changed = read_scaled_square(config, patches);
  config.refuse_unknown();
  return changed;
}

}  // namespace zea::detail
