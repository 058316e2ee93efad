// SPDX-License-Identifier: Apache-2.0
// The settings of an image processor that do not depend on the tiling policy: its class, the kernel
// of resizing, the normalization of pixels.
#pragma once

#include "spec/config_reader.hpp"

namespace zea::detail {

/// The defaults of one of transformers' classes of image processors: a file names its class, which
/// need not be the usual one of its encoder.
struct ProcessorClass {
  const char* name;  ///< without the common suffix
  bool squares;      ///< a size that is one number is both sides; false: the shorter one
  bool crops;        ///< the middle of an image is taken
  bool halves;       ///< mean and deviation are 0.5; false: those of CLIP
  Resampling resampling;

  ImageColours colours() const {
    if (!halves) return {};
    return {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
  }
};

/// Returns the class that a processor's file names; null where none is named, or an unknown one.
const ProcessorClass* processor_class(const ConfigReader& config);
/// Returns whether a processor does a step; null turns it off, unlike an absent key.
bool does(const ConfigReader& config, const char* key, bool usual);
/// Reads the normalization of pixels, which the processor does where nothing is said if it
/// `normalizes`; with the model's own if it `doubles` them (PatchInput::doubles_pixels).
void read_pixel_range(const ConfigReader& config, bool normalizes, bool doubles,
                      ImageColours& colours);
/// Reads the kernel of resizing: bilinear, bicubic, or Lanczos where that is the usual one.
Resampling read_resampling(const ConfigReader& config, Resampling usual);
/// Accepts keys of classes and arrays, and of images that are not RGB, which are refused later.
void pass_over_classes(const ConfigReader& config);
/// Reads these settings of images, by the class that is named.
void read_pixel_values(const ConfigReader& config, PatchInput& patches);

}  // namespace zea::detail
