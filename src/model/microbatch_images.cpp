// SPDX-License-Identifier: Apache-2.0
// The vision encoder's side of a microbatch: which images this rank encodes, which of their tokens
// it holds, and which features it makes.
#include <algorithm>

#include "microbatch_parts.hpp"
#include "zea/model/index_tensor.hpp"
#include "zea/plan/deal.hpp"
#include "zea/plan/image_row.hpp"

namespace zea::detail {
namespace {

/// The first token of an image that becomes a feature.
int64_t first_feature(const VisionConfig& vision) {
  return vision.tokens() - vision.features();
}

/// The features, by number in the microbatch, that the tokens of `runs` become.
RowRuns features_of(const RowRuns& runs, const Ids& images, const VisionConfig& vision) {
  const int64_t tokens = vision.tokens(), features = vision.features();
  RowRuns found;
  for (const TokenRange& run : runs)
    for (int64_t i = run.begin / tokens; i * tokens < run.end; ++i) {
      const int64_t start = i * tokens + first_feature(vision);
      const int64_t begin = std::max(run.begin, start), end = std::min(run.end, (i + 1) * tokens);
      if (begin < end)
        found.push_back({images[i] * features + begin - start, images[i] * features + end - start});
    }
  return found;
}

/// (items * patches, channels * patch^2) of (items, channels, size, size).
at::Tensor extract_patches(const at::Tensor& pixels, const VisionConfig& vision) {
  const int64_t side = vision.image_size / vision.patch_size, patch = vision.patch_size;
  return pixels.view({-1, vision.channels, side, patch, side, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({-1, vision.channels * patch * patch});
}

at::Tensor pixels_of(const LoadedMicrobatch& loaded, const Ids& images,
                     const VisionConfig& vision) {
  const at::Tensor all = at::from_blob(
      const_cast<float*>(loaded.pixels.data()),
      {loaded.items, vision.channels, vision.image_size, vision.image_size}, at::kFloat);
  if (static_cast<int64_t>(images.size()) == loaded.items) return all;
  return all.index_select(0, index_tensor(images, at::kCPU));
}

void fill_rows(Microbatch& out, const RowRuns& here, const VisionConfig& vision,
               const at::Tensor& patches, const MicrobatchOptions& options) {
  const int64_t tokens = vision.tokens();
  Ids positions, class_rows, patch_rows, feature_rows, own_patches;
  for (const TokenRange& run : here)
    for (int64_t token = run.begin; token < run.end; ++token) {
      const auto row = static_cast<int64_t>(positions.size());
      const int64_t position = token % tokens;
      positions.push_back(position);
      (position == 0 ? class_rows : patch_rows).push_back(row);
      if (position > 0) own_patches.push_back(token / tokens * vision.patches() + position - 1);
      if (position >= first_feature(vision)) feature_rows.push_back(row);
    }
  const bool all = static_cast<int64_t>(own_patches.size()) == patches.size(0);
  out.patches = (all ? patches : patches.index_select(0, index_tensor(own_patches, at::kCPU)))
                    .to(options.vision_dtype)
                    .to(options.device);
  out.image_positions = index_tensor(positions, options.device);
  out.class_rows = index_tensor(class_rows, options.device);
  out.patch_rows = index_tensor(patch_rows, options.device);
  out.feature_rows = index_tensor(feature_rows, options.device);
}

}  // namespace

void fill_images(Microbatch& out, const LoadedMicrobatch& loaded, const VisionConfig& vision,
                 const MicrobatchOptions& options) {
  const ReplicaLayout& replica = options.replica;
  const Coordinate place = replica.place(replica.rank, "vision");
  const Ids images =
      deal_images(loaded.items, vision, replica.grid("vision").dp_module)[place.dp_module];
  out.items_here = static_cast<int64_t>(images.size());
  if (images.empty()) return;
  const ImageRow row(out.items_here, vision, replica);
  const TokenLayout& layout = row.layout();
  fill_rows(out, layout.held(place.cp, place.tp), vision,
            extract_patches(pixels_of(loaded, images, vision), vision), options);
  out.image_shares = layout.shares(place.cp);
  for (size_t t = 0; t < out.image_shares.size(); ++t)
    out.feature_shares.push_back(
        count_rows(features_of(layout.held(place.cp, static_cast<int>(t)), images, vision)));
  const ContextOptions context = replica.sharding("vision").context;
  if (context.ranks > 1)
    out.image_attention.context =
        make_context_plan(row.visible(), layout.owned(), context, place.cp);
  else
    out.image_attention.batches = make_attention_batches(row.segments(), options.device);
}

std::vector<RowRuns> made_features(int64_t items, const VisionConfig& vision,
                                   const ReplicaLayout& replica) {
  const std::vector<Ids> dealt = deal_images(items, vision, replica.grid("vision").dp_module);
  std::vector<ImageRow> rows;
  for (const Ids& images : dealt)
    rows.emplace_back(static_cast<int64_t>(images.size()), vision, replica);
  std::vector<RowRuns> made;
  for (int rank = 0; rank < replica.ranks(); ++rank) {
    const Coordinate place = replica.place(rank, "vision");
    made.push_back(features_of(rows[place.dp_module].layout().held(place.cp, place.tp),
                               dealt[place.dp_module], vision));
  }
  return made;
}

}  // namespace zea::detail
