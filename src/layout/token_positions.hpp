// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a microbatch stand: in their samples, and those of images in a grid.
#pragma once

#include <array>
#include <vector>

#include "layout/mask_word.hpp"
#include "spec/module_spec.hpp"

namespace zea {

/// In time, by row and by column.
using TokenPosition = std::array<int64_t, 3>;

/// Of each token; samples begin at 0. Text goes on by 1 in all three. The features of an image
/// that begins at p stand at (p, p + row, p + column), and what follows goes on behind its longer
/// side (M-RoPE, arXiv:2409.12191); those of a video's moments likewise, in time a step further
/// each (Qwen2-VL), or where text stands between them as so many images (Qwen3-VL). `items`: the
/// shapes of each encoder's, in the order of their features; those without a width, such as sound,
/// are counted as text is.
std::vector<TokenPosition> grid_positions(const std::vector<MaskWord>& words,
                                          const std::vector<std::vector<ItemShape>>& items);

}  // namespace zea
