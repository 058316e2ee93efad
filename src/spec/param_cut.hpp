// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: the tp shard of a parameter on each tp rank of its module, and its place in
// the tensor of weights files. All shards have the same shape, so the flat buffers of all tp ranks
// have the same layout.
#pragma once

#include <vector>

#include "core/extent.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct ParamCut {
  Shape shape;            ///< of a shard; the last shards of a padded dim contain padding
  int dim = -1;           ///< the sharded dim; -1: every tp rank holds the whole parameter
  int holders = 1;        ///< neighboring tp ranks with the same shard
  bool of_heads = false;  ///< each holder has the gradient of its own heads
  int64_t stretches = 1;  ///< fused sections of dim: the shard has a share of each

  /// Returns whether `tp_rank` is the holder that counts the shard in norms and writes it.
  bool is_first_holder(int tp_rank) const { return tp_rank % holders == 0; }
};

/// Returns whether `param` can be sharded over `tp` ranks.
bool can_cut(const ParamSpec& param, int tp);

/// Returns the shard of each of `tp` ranks; requires can_cut().
ParamCut cut_of(const ParamSpec& param, int tp);

/// A box of a parameter's tensor (ParamSpec::tensor_shape()), and the first of its packed elements
/// in the row-major shard.
struct PieceBox {
  Extent extent;
  int64_t begin;
};

/// Returns the boxes of elements [begin, end) of the shard of `tp_rank`, ascending, without
/// padding.
std::vector<PieceBox> boxes_of_piece(const ParamSpec& param, const ParamCut& cut, int tp_rank,
                                     int64_t begin, int64_t end);

}  // namespace zea
