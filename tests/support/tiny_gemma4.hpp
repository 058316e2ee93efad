// SPDX-License-Identifier: Apache-2.0
// The config.json of a tiny Gemma 4 with images and videos, and with audio if `options` has it.
#pragma once

#include <string>

#include "support/tiny_llava.hpp"

namespace zea::testing {

/// Patches of 4 x 4 pixels, of which squares of 2 x 2 become features; placeholder ids 3 of images,
/// 4 of videos and 6 of audio. `clips`: linears are clipped; otherwise features are standardized.
/// Images are bidirectional in layers with a window, unless the text is like that of E4B.
std::string tiny_gemma4_config(const TinyLlava& options = {}, bool clips = false,
                               const Gemma4Parts& parts = {});

/// Limits its images, videos and clips to a few features each.
void shrink_gemma4(ModelSpec& model);

}  // namespace zea::testing
