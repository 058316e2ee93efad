// SPDX-License-Identifier: Apache-2.0
#include "spec/processor_pixels.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace zea::detail {
namespace {

constexpr Resampling kCubic = Resampling::Bicubic, kLinear = Resampling::Bilinear;

/// The classes of transformers 5.17, in the order of ProcessorClass's members.
constexpr std::array kProcessorClasses{
    ProcessorClass{"Bit", false, true, false, kCubic},
    ProcessorClass{"CLIP", false, true, false, kCubic},
    ProcessorClass{"DeiT", true, true, true, kCubic},
    ProcessorClass{"Gemma3", true, false, true, kLinear},
    ProcessorClass{"Glm46V", false, false, false, kCubic},
    ProcessorClass{"Glm4v", false, false, false, kCubic},
    ProcessorClass{"GotOcr2", true, false, false, kCubic},
    ProcessorClass{"Idefics3", true, false, true, Resampling::Lanczos},
    ProcessorClass{"Kimi_K25", true, false, true, kCubic},
    ProcessorClass{"Llava", false, true, false, kCubic},
    ProcessorClass{"LlavaNext", false, true, false, kCubic},
    ProcessorClass{"LlavaOnevision", false, false, false, kCubic},
    ProcessorClass{"Pixtral", true, false, false, kCubic},
    ProcessorClass{"Qwen2VL", false, false, false, kCubic},
    ProcessorClass{"Siglip", false, false, true, kCubic},
    ProcessorClass{"Siglip2", true, false, true, kLinear},
    ProcessorClass{"SmolVLM", true, false, true, Resampling::Lanczos},
    ProcessorClass{"ViT", true, false, true, kLinear}};

/// Returns the class that a processor's file names, such as ViT for ViTImageProcessorFast; empty:
/// none.
std::string processor_class_name(const ConfigReader& config) {
  std::string name = config.text("image_processor_type", config.text("feature_extractor_type", ""));
  // "Fast" classes resize with torchvision; the last suffix is that of the oldest files.
  for (const std::string_view end : {"Fast", "ImageProcessor", "FeatureExtractor"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  return name;
}

/// `normalizes`: the default of do_normalize.
void read_colours(const ConfigReader& config, bool normalizes, ImageColours& colours) {
  if (config.has("image_mean")) colours.mean = config.numbers("image_mean", 3, false);
  if (config.has("image_std")) colours.std = config.numbers("image_std", 3);
  if (!does(config, "do_normalize", normalizes)) {
    colours.mean = {0, 0, 0};
    colours.std = {1, 1, 1};
  }
  colours.scale = config.number("rescale_factor", colours.scale);
  if (colours.scale <= 0) config.refuse("rescale_factor", config.dump("rescale_factor"), "above 0");
  if (!does(config, "do_rescale", true)) colours.scale = 1;
}

/// Whether a processor resizes with torchvision, which transformers 4 shows by "Fast" in its name.
/// Lanczos resizing is always PIL's: torchvision has that kernel only since 0.27.
bool is_by_torchvision(const ConfigReader& config, Resampling resampling) {
  return config.text("image_processor_type", "").ends_with("Fast") &&
         resampling != Resampling::Lanczos;
}

/// Sets the defaults of the named class.
void assume_class(const ConfigReader& config, PatchInput& patches) {
  const std::string name = processor_class_name(config);
  if (patches.doubles_pixels) {
    if (!name.empty() && name != "Gemma4")
      config.refuse("image_processor_type", name, "Gemma4ImageProcessor");
    return;
  }
  if (const ProcessorClass* of = processor_class(config)) {
    patches.colours = of->colours();
    patches.resampling = of->resampling;
    return;
  }
  if (name.empty() || !does(config, "do_normalize", true)) return;
  for (const char* key : {"image_mean", "image_std"})
    if (!config.has(key))
      config.refuse(key, "nothing", "a list of 3 numbers, as zea does not know those of " + name);
}

}  // namespace

bool does(const ConfigReader& config, const char* key, bool usual) {
  return !config.is_null(key) && config.boolean(key, usual);
}

const ProcessorClass* processor_class(const ConfigReader& config) {
  const std::string name = processor_class_name(config);
  const auto found =
      std::ranges::find(kProcessorClasses, name,
                        [](const ProcessorClass& of) -> std::string_view { return of.name; });
  return found == kProcessorClasses.end() ? nullptr : &*found;
}

Resampling read_resampling(const ConfigReader& config, Resampling usual) {
  constexpr int64_t kLanczos = 1, kBilinear = 2, kBicubic = 3;  // as PIL numbers them
  if (usual == Resampling::Lanczos && config.integer("resample", kLanczos) == kLanczos)
    return usual;
  const int64_t found =
      config.integer("resample", usual == Resampling::Bilinear ? kBilinear : kBicubic);
  if (found != kBilinear && found != kBicubic)
    config.refuse("resample", std::to_string(found), "2 (bilinear), 3 (bicubic)");
  return found == kBilinear ? Resampling::Bilinear : Resampling::Bicubic;
}

void pass_over_classes(const ConfigReader& config) {
  config.ignore_keys({"_processor_class", "_valid_processor_keys", "data_format",
                      "default_to_square", "device", "disable_grouping", "do_convert_rgb",
                      "feature_extractor_type", "image_processor_type", "image_seq_length",
                      "input_data_format", "processor_class", "return_tensors", "size_divisor",
                      "video_processor_type"});
}

/// A model that doubles pixels reads 2 y - 1 of y = (x - mean) / std, with the mean and deviation
/// of its processor's files, or 0 and 1.
void read_pixel_range(const ConfigReader& config, bool normalizes, bool doubles,
                      ImageColours& colours) {
  if (doubles) colours = {.mean = {0, 0, 0}, .std = {1, 1, 1}, .scale = colours.scale};
  read_colours(config, normalizes, colours);
  if (!doubles) return;
  for (size_t c = 0; c < colours.mean.size(); ++c) {
    colours.std[c] /= 2;
    colours.mean[c] += colours.std[c];
  }
}

void read_pixel_values(const ConfigReader& config, PatchInput& patches) {
  pass_over_classes(config);
  assume_class(config, patches);
  read_pixel_range(config, !patches.doubles_pixels, patches.doubles_pixels, patches.colours);
  patches.resampling = read_resampling(config, patches.resampling);
  patches.by_torchvision |= is_by_torchvision(config, patches.resampling);
}

}  // namespace zea::detail
