// SPDX-License-Identifier: Apache-2.0
// Settings of an image processor that do not depend on the tiling policy: its class, the resampling
// kernel, the normalization of pixels.
#pragma once

#include "spec/config_reader.hpp"

namespace zea::detail {

/// The defaults of an image processor class of transformers. A processor's file names its class,
/// which may differ from the usual class of the encoder.
struct ProcessorClass {
  const char* name;  ///< without the common suffix
  bool squares;      ///< a size of one number sets both sides; false: the shorter side
  bool crops;        ///< center crop
  bool halves;       ///< mean and deviation are 0.5; false: CLIP's values
  Resampling resampling;

  ImageColours colours() const {
    if (!halves) return {};
    return {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}};
  }
};

/// Returns the class that a processor's file names; null if it names none or an unknown one.
const ProcessorClass* processor_class(const ConfigReader& config);
/// Returns whether a processor does a step such as do_resize: null turns it off, an absent key
/// means `usual`.
bool does(const ConfigReader& config, const char* key, bool usual);
/// Reads the normalization of pixels. `normalizes`: the default of do_normalize; `doubles`: see
/// PatchInput::doubles_pixels.
void read_pixel_range(const ConfigReader& config, bool normalizes, bool doubles,
                      ImageColours& colours);
/// Reads the resampling kernel: bilinear, bicubic, or Lanczos if `usual` is Lanczos.
Resampling read_resampling(const ConfigReader& config, Resampling usual);
/// Ignores keys without effect on pixels. (Images that are not RGB are refused later.)
void pass_over_classes(const ConfigReader& config);
/// Reads all of these settings for images, with the defaults of the named class.
void read_pixel_values(const ConfigReader& config, PatchInput& patches);

}  // namespace zea::detail
