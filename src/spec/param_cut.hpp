// SPDX-License-Identifier: Apache-2.0
// The plan of tensor parallelism: the piece of a parameter that each tp rank of its module holds,
// and where that piece lies in the tensor of weights files. All tp ranks hold pieces of the same
// shape, so their flat buffers are laid out alike.
#pragma once

#include <vector>

#include "core/extent.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct ParamCut {
  Shape shape;            ///< of a piece; the last ones of a padded dim hold padding, too
  int dim = -1;           ///< that is cut; -1: every tp rank holds all of it
  int holders = 1;        ///< neighbouring tp ranks that hold the same piece
  bool of_heads = false;  ///< a holder's gradient is that of its heads alone
  int64_t stretches = 1;  ///< equal ones of dim: of each of the tensor's in turn, a share

  /// Whether `tp_rank` is the one of a piece's holders that counts it in norms and writes it.
  bool is_first_holder(int tp_rank) const { return tp_rank % holders == 0; }
};

/// Whether `tp` ranks can share `param`.
bool can_cut(const ParamSpec& param, int tp);

/// The piece of each of `tp` ranks, which can share `param`.
ParamCut cut_of(const ParamSpec& param, int tp);

/// A box of a parameter's tensor (ParamSpec::tensor_shape()), and the row-major element of a piece
/// where its packed elements lie.
struct PieceBox {
  Extent extent;
  int64_t begin;
};

/// The boxes of the elements [begin, end) of the piece of `tp_rank`, ascending; padding has none.
std::vector<PieceBox> boxes_of_piece(const ParamSpec& param, const ParamCut& cut, int tp_rank,
                                     int64_t begin, int64_t end);

}  // namespace zea
