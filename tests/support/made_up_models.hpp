// SPDX-License-Identifier: Apache-2.0
// Models that no config.json can describe, changed from those that one can: the engine must work
// with them unchanged.
#pragma once

#include "spec/model_spec.hpp"

namespace zea::testing {

/// Changes a tiny LLaVA with `siglip`: images of its last image encoder have any size, and the
/// projector merges 2 x 2 patches into one feature.
void merge_images_of_any_size(ModelSpec& model);

/// Then they fill up to 30 patches of values by pixel, and its table of positions is laid over
/// them.
void fill_patches(ModelSpec& model);

/// Adds windows to a model with images of any size: every other block of that encoder, the first
/// one, attends within windows of 2 x 2 features.
void see_image_windows(ModelSpec& model);

/// Changes a tiny LLaVA: its images are cut into at most three tiles, whose class tokens follow
/// their patches, and the projector merges 2 x 2 patches into one feature.
void cut_into_tiles(ModelSpec& model);

inline constexpr const char* kSecondEncoder = "detail";

/// A second encoder of images like the first, with a placeholder (id 4) and parameters of its own,
/// of whose images the above is true.
void add_second_image_encoder(ModelSpec& model);

/// Every other block of the decoder sees a window, turns by waves of its own, and has scores of its
/// own.
void mix_windows(ModelSpec& model);
/// All of them see one.
void see_windows(ModelSpec& model);

/// Changes a decoder with the names of Llama: every block but the last of several has a gated delta
/// rule in place of attention, of 8 key heads and 16 value heads.
void mix_delta_rules(ModelSpec& model);
/// The same with in-projections by key head.
void mix_delta_rules_by_key_head(ModelSpec& model);
/// The same with adapters in the linears of the delta rules, but one, which train in their place.
void adapt_delta_rules(ModelSpec& model);

}  // namespace zea::testing
