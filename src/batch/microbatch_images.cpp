// SPDX-License-Identifier: Apache-2.0
// What an encoder of images is given of a microbatch: the patches of the images that this rank
// encodes.
#include "microbatch_parts.hpp"
#include "zea/model/index_tensor.hpp"

namespace zea::detail {
namespace {

/// (items * patches, channels * patch^2) of (items, channels, size, size).
at::Tensor extract_patches(const at::Tensor& pixels, const PatchInput& input) {
  const int64_t side = input.side(), patch = input.patch_size;
  return pixels.view({-1, input.channels, side, patch, side, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({-1, input.values()});
}

at::Tensor pixels_of(const OwnItems& own, const PatchInput& input) {
  const at::Tensor all =
      at::from_blob(const_cast<float*>(own.values.data()),
                    {own.all, input.channels, input.image_size, input.image_size}, at::kFloat);
  if (static_cast<int64_t>(own.items.size()) == own.all) return all;
  return all.index_select(0, index_tensor(own.items, at::kCPU));
}

}  // namespace

void fill_images(EncoderPart& part, const OwnItems& own, const PatchInput& input) {
  const at::Tensor patches = extract_patches(pixels_of(own, input), input);
  const int64_t classes = input.class_tokens(), tokens = classes + input.patches();
  Ids class_rows, patch_rows, own_patches;
  int64_t row = 0;
  for (const TokenRange& run : own.here)
    for (int64_t token = run.begin; token < run.end; ++token, ++row) {
      const int64_t patch = token % tokens - classes;
      (patch < 0 ? class_rows : patch_rows).push_back(row);
      if (patch >= 0) own_patches.push_back(token / tokens * input.patches() + patch);
    }
  const bool all = static_cast<int64_t>(own_patches.size()) == patches.size(0);
  part.patches = (all ? patches : patches.index_select(0, index_tensor(own_patches, at::kCPU)))
                     .to(own.dtype)
                     .to(own.device);
  part.class_rows = index_tensor(class_rows, own.device);
  part.patch_rows = index_tensor(patch_rows, own.device);
}

}  // namespace zea::detail
