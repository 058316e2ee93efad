// SPDX-License-Identifier: Apache-2.0
#include "spec/param_shard.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

/// Splits a box of a shard into boxes that each lie in one section, packed in the same order.
std::vector<Extent> in_fused_sections(const Extent& box, const ParamShard& cut) {
  if (cut.fused_sections == 1) return {box};
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t share = cut.shape[dim] / cut.fused_sections;
  const int64_t begin = box.offset[dim], end = begin + box.length[dim];
  if (begin / share == (end - 1) / share) return {box};
  std::vector<Extent> boxes;
  // For each index of the dims before: sections alternate with them.
  const Shape before(box.length.begin(), box.length.begin() + cut.dim);
  for (int64_t i = 0; i < num_elements(before); ++i) {
    Extent part = box;
    for (size_t d = dim, rest = static_cast<size_t>(i); d-- > 0;) {
      part.offset[d] += static_cast<int64_t>(rest) % before[d];
      part.length[d] = 1;
      rest /= static_cast<size_t>(before[d]);
    }
    for (int64_t from = begin; from < end; from += part.length[dim]) {
      part.offset[dim] = from;
      part.length[dim] = std::min(end, (from / share + 1) * share) - from;
      boxes.push_back(part);
    }
  }
  return boxes;
}

}  // namespace

bool can_shard(const ParamSpec& param, int tp) {
  const TpSharding& cut = param.tp_sharding;
  if (cut.dim < 0 || cut.pads || cut.blocks % tp == 0) return true;
  return cut.replicates_kv && tp % cut.blocks == 0;
}

ParamShard param_shard_of(const ParamSpec& param, int tp) {
  ZEA_ASSERT(can_shard(param, tp));
  ParamShard piece{.shape = param.shape};
  if (tp == 1) return piece;
  const TpSharding& cut = param.tp_sharding;
  piece.holders = tp;
  piece.of_heads = cut.of_heads;
  if (cut.dim < 0) return piece;
  const int64_t pieces = cut.replicates_kv ? std::min<int64_t>(cut.blocks, tp) : tp;
  piece.dim = cut.dim;
  piece.fused_sections = cut.fused_sections;
  piece.holders = static_cast<int>(tp / pieces);
  int64_t& length = piece.shape[cut.dim];
  length = (length + pieces - 1) / pieces;
  return piece;
}

void shard_experts(const ModelSpec& model, int ep, int tp, std::vector<ParamShard>& cuts) {
  if (ep == 1) return;
  for (const UnitSpec& unit : model.units)
    for (const std::vector<int>& experts : model.expert_params(unit)) {
      const auto each = static_cast<int>(std::ssize(experts)) / ep;
      for (size_t e = 0; e < experts.size(); ++e) {
        ParamShard& cut = cuts[experts[e]];
        cut.ep = ep;
        cut.tp = tp;
        if (model.params[experts[e]].stacks_experts) {
          cut.shape[0] /= ep;
          continue;
        }
        ZEA_ASSERT(experts[e] == experts[0] + static_cast<int>(e));
        cut.home = static_cast<int>(e) / each;
        cut.step = each;
      }
    }
}

std::vector<PieceBox> boxes_of_piece(const ParamSpec& param, const ParamShard& cut, int piece_rank,
                                     int64_t begin, int64_t end) {
  const int tp_rank = cut.ep > 1 ? piece_rank % cut.tp : piece_rank;
  int64_t stretch = 0, share = 0, offset = 0, real = num_elements(cut.shape);
  if (cut.dim >= 0) {
    stretch = param.shape[cut.dim] / cut.fused_sections;
    share = cut.shape[cut.dim] / cut.fused_sections;
    offset = tp_rank / cut.holders * share;
    const int64_t length = std::clamp<int64_t>(stretch - offset, 0, share);
    // Only the first dim is padded, and it has one section then, so padding comes last.
    ZEA_ASSERT((cut.dim == 0 && cut.fused_sections == 1) || length == share);
    real = real / share * length;
  }
  std::vector<PieceBox> boxes;
  for (const Extent& extent :
       boxes_of_range(cut.shape, begin, std::clamp(end, begin, std::max(begin, real))))
    for (Extent& box : in_fused_sections(extent, cut)) {
      const int64_t elements = box.elements();
      if (cut.dim >= 0)
        box.offset[cut.dim] += offset + box.offset[cut.dim] / share * (stretch - share);
      if (cut.ep > 1 && cut.step == 0) box.offset[0] += piece_rank / cut.tp * cut.shape[0];
      if (param.part.begin > 0) box.offset[param.part.dim] += param.part.begin;
      boxes.push_back({std::move(box), begin});
      begin += elements;
    }
  return boxes;
}

}  // namespace zea
