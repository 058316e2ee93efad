// SPDX-License-Identifier: Apache-2.0
// How gradients become whole, as groups of ranks. A flat buffer is cut over the ranks that hold the
// same piece of its parameters and see other tokens (shard group), its shards are summed over their
// replicas, and what several tp ranks hold besides (norms, row biases, repeated KV heads) is summed
// over these. Pure values over the mesh shape.
//
//   parameter                                    its gradient, once reduced to shards, is
//   cut over tp                                  whole
//   of an expert, on one rank of an ep group     of this group's tokens, whole once reduced (along
//                                                tp nothing is summed: other ranks have others)
//   whole on every tp rank, sequence parallel    a slice's share: summed over tp
//   whole on every tp rank, without              whole on each: summed over tp, divided by tp
//   the same, used on a rank's own heads         of these heads: summed over tp
//   KV head of several tp ranks                  of some query heads: summed over its holders
//   at several stages (tied embeddings)          of one stage's use: summed over these stages
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layout/axis.hpp"
#include "spec/param_shard.hpp"

namespace zea {

/// dp_shard, encoder_dp, cp: the ranks that share the buffer of a parameter cut by tp.
std::vector<Axis> shard_axes();
/// The ranks that share the experts of a mixture, and those with the same experts: in a shard
/// group, and of all whose tokens differ.
std::vector<Axis> ep_axes(const ModuleGrid& grid);
std::vector<Axis> expert_shard_axes();
std::vector<Axis> expert_token_axes();
/// encoder_dp, cp, tp: the ranks of one stage of a module in one replica.
std::vector<Axis> stage_axes();
/// dp_replicate, dp_shard, encoder_dp, cp: the ranks whose tokens differ.
std::vector<Axis> token_axes();

/// The factor on what each holder of a piece contributes to the sum over its holders.
double holder_scale(const ParamShard& cut, bool sequence_parallel);

/// The neighbours of `world_rank` along tp that hold the same piece as it, where `holders` do;
/// `holders` divides tp. Ascending.
std::vector<int> piece_holders(const MeshShape& shape, int world_rank, const std::string& module,
                               int holders);

/// The ranks at the stages of ModuleGrid::tied_stages[set] that differ from `world_rank` only along
/// pp; ascending; empty if `world_rank` is at none of these stages.
std::vector<int> tied_group(const MeshShape& shape, int world_rank, const std::string& module,
                            int set);
/// Returns the name of this group: "llm.tied", "llm.tied2".
std::string tied_name(const std::string& module, int set);

/// The neighbours of `world_rank` along cp, ModuleGrid::cp_inner of them, that exchange tokens for
/// heads; and the ranks of its number in all such groups, between which keys travel. Ascending.
std::vector<int> cp_inner_group(const MeshShape& shape, int world_rank, const std::string& module);
std::vector<int> cp_outer_group(const MeshShape& shape, int world_rank, const std::string& module);

/// The neighbours of `world_rank` in its shard group over which parameters stay sharded between
/// forward and backward: `size` ranks, which divides the group. Ascending.
std::vector<int> shard_subgroup(const MeshShape& shape, int world_rank, const std::string& module,
                                int size);

/// The ranks of `world_rank`'s replica (one dp_replicate, one dp_shard), of all modules: features
/// travel among them.
std::vector<int> replica(const MeshShape& shape, int world_rank);

/// The names of groups: "llm.tp", "llm.dp_shard+encoder_dp+cp", "llm.tied".
std::string group_name(const std::string& module, const std::string& special);
std::string group_name(const std::string& module, std::vector<Axis> axes);

struct RankGroups {
  std::string name;  ///< under which it is counted what they send
  /// Returns the group of a rank; none where it has no part of the module.
  std::function<std::vector<int>(int world_rank)> of;
  bool shards_buffers = false;  ///< parameters may be sharded over these ranks
};

/// All groups that a mesh of this shape, which outlives them, is built of, but for links.
std::vector<RankGroups> rank_groups(const MeshShape& shape);

}  // namespace zea
