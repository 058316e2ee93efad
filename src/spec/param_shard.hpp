// SPDX-License-Identifier: Apache-2.0
// Tensor and expert parallelism: the part of a parameter that each rank of its module has, and its
// place in the tensor of weights files. All parts have the same shape, so the flat buffers of all
// ranks have the same layout.
#pragma once

#include <vector>

#include "core/extent.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct ParamShard {
  Shape shape;                 ///< of a shard; the last shards of a padded dim contain padding
  int dim = -1;                ///< the sharded dim; -1: every tp rank holds the whole parameter
  int holders = 1;             ///< neighboring tp ranks with the same shard
  bool of_heads = false;       ///< each holder has the gradient of its own heads
  int64_t fused_sections = 1;  ///< fused sections of dim: the shard has a share of each

  // Expert parallelism. Buffers list the parameters of the first ep rank; at their places each of
  // the others has those of its own experts.
  int ep = 1;    ///< ranks that share the experts that this parameter belongs to
  int tp = 1;    ///< tp ranks that shard each: rank r of all has shard r % tp of ep rank r / tp
  int home = 0;  ///< the ep rank whose parameter it is, where experts have parameters of their own
  /// From a parameter to that of the next ep rank, in ModelSpec::params; 0: the parameter stacks
  /// all experts, and each ep rank has a range of its first dim.
  int step = 0;

  /// Returns whether `tp_rank` is the holder that counts the shard in norms and writes it.
  bool is_first_holder(int tp_rank) const { return tp_rank % holders == 0; }
  /// Returns the parameter that a rank has where buffers list `param`.
  int param_of(int param, int piece_rank) const { return param + piece_rank / tp * step; }
  /// Returns all that ranks have there.
  std::vector<int> params_of_ranks(int param) const {
    std::vector<int> all{param};
    for (int rank = 1; step > 0 && rank < ep; ++rank) all.push_back(param + rank * step);
    return all;
  }
};

/// Returns whether `param` can be sharded over `tp` ranks.
bool can_shard(const ParamSpec& param, int tp);

/// Returns the shard of each of `tp` ranks; requires can_shard().
ParamShard param_shard_of(const ParamSpec& param, int tp);

/// Gives whole experts of the model's mixtures to each of `ep` ranks: changes the experts' entries
/// of `cuts`, which are sharded over `tp` before. Requires that `ep` divides the experts.
void shard_experts(const ModelSpec& model, int ep, int tp, std::vector<ParamShard>& cuts);

/// A box of a parameter's tensor (ParamSpec::tensor_shape()), and the first of its packed elements
/// in the row-major shard.
struct PieceBox {
  Extent extent;
  int64_t begin;
};

/// Returns the boxes of elements [begin, end) of the part of `piece_rank` among the ep and tp
/// ranks, ascending, without padding. `param` is the parameter that this rank has
/// (ParamShard::param_of).
std::vector<PieceBox> boxes_of_piece(const ParamSpec& param, const ParamShard& cut, int piece_rank,
                                     int64_t begin, int64_t end);

}  // namespace zea
