// SPDX-License-Identifier: Apache-2.0
// The input of an image encoder: the patches of the images that this rank encodes.
#include <algorithm>

#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// (patches, channels * frames * patch^2) of pictures (pictures, channels, height, width): squares
/// of them by rows; or (patches, patch^2 * channels). `shown`: frames of a temporal patch (one
/// image is repeated to fill it), or with `are_averaged` frames whose squares are contiguous.
at::Tensor extract_patches(const at::Tensor& pixels, const PatchInput& input, int64_t shown,
                           bool are_averaged) {
  const int64_t patch = input.patch_size, block = input.block, step = patch * block;
  const int64_t high = pixels.size(2) / step, wide = pixels.size(3) / step;
  // Pixels at the edge that fill no whole patch are dropped.
  const at::Tensor parts =
      pixels.narrow(2, 0, high * step)
          .narrow(3, 0, wide * step)
          .view({-1, shown, input.channels, high, block, patch, wide, block, patch});
  if (input.by_pixel)
    return parts.permute({0, 3, 6, 4, 7, 1, 5, 8, 2}).reshape({-1, input.values()});
  if (are_averaged) return parts.permute({0, 3, 6, 1, 4, 7, 2, 5, 8}).reshape({-1, input.values()});
  return parts.permute({0, 3, 6, 4, 7, 2, 1, 5, 8})
      .expand({-1, -1, -1, -1, -1, -1, input.frames, -1, -1})
      .reshape({-1, input.values()});
}

/// Returns the patches of the images held, one image after the other.
at::Tensor held_patches(const std::vector<float>& values, const OwnItems& own,
                        const PatchInput& input) {
  int64_t first = 0;
  const auto patches_of = [&](int64_t count, const ItemShape& shape) {
    const int64_t high = input.patches_of(shape) / shape.averaged / shape.width;
    const auto pixels_of = [&](int64_t patches) {
      return input.any_size() ? patches * input.patch_size : input.image_size;
    };
    const at::Tensor images = at::from_blob(
        const_cast<float*>(values.data()) + first,
        {count * shape.pictures(), input.channels, pixels_of(high), pixels_of(shape.width)},
        at::kFloat);
    first += images.numel();
    return extract_patches(images, input, shape.pictures() / shape.tiles, shape.averaged > 1);
  };
  std::vector<at::Tensor> patches;
  for (auto item = own.held.begin(); item != own.held.end();) {
    const ItemShape& shape = own.row.shape(static_cast<size_t>(*item));
    const auto next = std::find_if(item, own.held.end(), [&](int64_t other) {
      return own.row.shape(static_cast<size_t>(other)) != shape;
    });
    patches.push_back(patches_of(next - item, shape));
    item = next;
  }
  ZEA_ASSERT(first == std::ssize(values));  // the loader took the same items
  if (patches.empty()) return at::empty({0, input.values()}, at::kFloat);
  return patches.size() == 1 ? patches.front() : at::cat(patches);
}

/// Returns the index of a token's patch among patches in row order.
int64_t patch_by_rows(int64_t patch, const ItemShape& image) {
  if (image.window == 0) return patch;
  return image.feature_of(patch) * image.merge + patch % image.merge;
}

/// Returns the index of the first patch of each image that is held.
Ids first_patches(const OwnItems& own, const PatchInput& input) {
  Ids firsts(own.row.shapes().size(), -1);
  int64_t first = 0;
  for (const int64_t item : own.held) {
    const ItemShape& shape = own.row.shape(static_cast<size_t>(item));
    firsts[static_cast<size_t>(item)] = first;
    first += shape.tiles * input.patches_of(shape);
  }
  return firsts;
}

/// Returns (1 + frames, hidden): zeros for images, then sines and cosines of each frame index.
at::Tensor time_positions(int64_t frames, int64_t hidden) {
  const at::Tensor rates =
      at::pow(10000.0, at::arange(0, hidden, 2, at::kDouble) / static_cast<double>(-hidden));
  const at::Tensor angles = at::arange(frames, at::kDouble).unsqueeze(1) * rates;
  return at::cat(
      {at::zeros({1, hidden}, at::kDouble), at::cat({at::sin(angles), at::cos(angles)}, 1)});
}

}  // namespace

void fill_images(EncoderPart& part, const std::vector<float>& values, const OwnItems& own,
                 const EncoderSpec& encoder) {
  const PatchInput& input = encoder.patches();
  if (encoder.averages_frames())
    part.position_table =
        time_positions(input.video->most_frames, encoder.block.hidden).to(own.dtype);
  const at::Tensor patches = held_patches(values, own, input);
  const Ids firsts = first_patches(own, input);
  Ids patch_rows, chosen;
  int64_t row = 0;
  for (const TokenRange& run : own.here)
    for (int64_t token = run.begin; token < run.end; ++token, ++row) {
      const size_t item = own.row.item_of(token);
      const ItemShape& shape = own.row.shape(item);
      const int64_t of_tile = input.patches_of(shape), tile_tokens = shape.tile_tokens();
      const int64_t patch = input.patch_of(own.row.position_in_tile(token), of_tile);
      if (patch < 0 && input.learned_tokens() > 0) continue;
      patch_rows.push_back(row);
      if (patch <
          0) {  // the end of a row, in whose place a learned one is put, whatever this holds
        chosen.push_back(firsts[item]);
        continue;
      }
      chosen.push_back(firsts[item] + own.row.position(token) / tile_tokens * of_tile +
                       patch_by_rows(patch, shape));
    }
  const bool all =
      static_cast<int64_t>(chosen.size()) == patches.size(0) && std::ranges::is_sorted(chosen);
  part.patches = (all ? patches : patches.index_select(0, index_tensor(chosen))).to(own.dtype);
  part.patch_rows = index_tensor(patch_rows);
}

}  // namespace zea::detail
