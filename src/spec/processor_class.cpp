// SPDX-License-Identifier: Apache-2.0
#include "spec/processor_class.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace zea::detail {
namespace {

constexpr Resampling kCubic = Resampling::Bicubic, kLinear = Resampling::Bilinear;

/// Of transformers 5.17: name, squares, crops, halves, resampling.
constexpr std::array kProcessorClasses{
    ProcessorClass{"Bit", false, true, false, kCubic},
    ProcessorClass{"CLIP", false, true, false, kCubic},
    ProcessorClass{"DeiT", true, true, true, kCubic},
    ProcessorClass{"Gemma3", true, false, true, kLinear},
    ProcessorClass{"GotOcr2", true, false, false, kCubic},
    ProcessorClass{"Idefics3", true, false, true, Resampling::Lanczos},
    ProcessorClass{"Llava", false, true, false, kCubic},
    ProcessorClass{"LlavaNext", false, true, false, kCubic},
    ProcessorClass{"LlavaOnevision", false, false, false, kCubic},
    ProcessorClass{"Pixtral", true, false, false, kCubic},
    ProcessorClass{"Qwen2VL", false, false, false, kCubic},
    ProcessorClass{"Siglip", false, false, true, kCubic},
    ProcessorClass{"Siglip2", true, false, true, kLinear},
    ProcessorClass{"SmolVLM", true, false, true, Resampling::Lanczos},
    ProcessorClass{"ViT", true, false, true, kLinear}};

}  // namespace

ImageColours ProcessorClass::colours() const {
  if (!halves) return {};
  return {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
}

std::string processor_class_name(const ConfigReader& config) {
  std::string name = config.text("image_processor_type", config.text("feature_extractor_type", ""));
  // "Fast" was what resizes with torchvision, and the last what files said before there were
  // others.
  for (const std::string_view end : {"Fast", "ImageProcessor", "FeatureExtractor"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  return name;
}

const ProcessorClass* processor_class(const ConfigReader& config) {
  const std::string name = processor_class_name(config);
  const auto found =
      std::ranges::find(kProcessorClasses, name,
                        [](const ProcessorClass& of) -> std::string_view { return of.name; });
  return found == kProcessorClasses.end() ? nullptr : &*found;
}

}  // namespace zea::detail
