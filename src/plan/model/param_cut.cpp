// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/model/param_cut.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {

bool can_cut(const ParamSpec& param, int tp) {
  const TpCut& cut = param.tp_cut;
  if (cut.dim < 0 || cut.pads || cut.blocks % tp == 0) return true;
  return cut.repeats && tp % cut.blocks == 0;
}

ParamCut cut_of(const ParamSpec& param, int tp) {
  ZEA_ASSERT(can_cut(param, tp));
  ParamCut piece{.shape = param.shape};
  if (tp == 1) return piece;
  const TpCut& cut = param.tp_cut;
  piece.holders = tp;
  piece.of_heads = cut.of_heads;
  if (cut.dim < 0) return piece;
  const int64_t pieces = cut.repeats ? std::min<int64_t>(cut.blocks, tp) : tp;
  piece.dim = cut.dim;
  piece.holders = static_cast<int>(tp / pieces);
  int64_t& length = piece.shape[cut.dim];
  length = (length + pieces - 1) / pieces;
  return piece;
}

std::vector<PieceBox> boxes_of_piece(const ParamSpec& param, const ParamCut& cut, int tp_rank,
                                     int64_t begin, int64_t end) {
  int64_t offset = 0, real = num_elements(cut.shape);
  if (cut.dim >= 0) {
    offset = tp_rank / cut.holders * cut.shape[cut.dim];
    const int64_t length =
        std::clamp<int64_t>(param.shape[cut.dim] - offset, 0, cut.shape[cut.dim]);
    // Only the first dim is ever padded, so what is real comes first.
    ZEA_ASSERT(cut.dim == 0 || length == cut.shape[cut.dim]);
    real = real / cut.shape[cut.dim] * length;
  }
  std::vector<PieceBox> boxes;
  for (Extent& extent :
       boxes_of_range(cut.shape, begin, std::clamp(end, begin, std::max(begin, real)))) {
    const int64_t elements = extent.elements();
    if (cut.dim >= 0) extent.offset[cut.dim] += offset;
    if (param.part.begin > 0) extent.offset[param.part.dim] += param.part.begin;
    boxes.push_back({std::move(extent), begin});
    begin += elements;
  }
  return boxes;
}

}  // namespace zea
