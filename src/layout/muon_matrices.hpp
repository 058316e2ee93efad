// SPDX-License-Identifier: Apache-2.0
// The matrices that Muon orthogonalizes (a tensor of the weights files, or one expert's part), how
// they are grouped, which rank orthogonalizes each, and the messages between these ranks.
#pragma once

#include <vector>

#include "core/kernel_sizes.hpp"
#include "layout/flat_layout.hpp"
#include "spec/param_rules.hpp"

namespace zea {

/// Matrices whose long side is so many times the short one are orthogonalized in products of the
/// short side alone, but for two.
inline constexpr int64_t kMuonLong = 2;

/// Elements of the buffers that are made together, at most, where one alone has not more: the work
/// on their matrices evens out over ranks, and small ones are sent in one call.
inline constexpr int64_t kMuonElements = int64_t{8} << 20;

struct MuonMatrix {
  Shape shape;                    ///< (rows, columns)
  int buffer;                     ///< where it lies
  std::vector<FlatPart> members;  ///< its parts in the buffer, of which a tp rank has a piece each
  int owner = 0;  ///< of the ranks that share the work: replica by replica, shard by shard

  int64_t elements() const { return shape[0] * shape[1]; }
  /// Whether a core keeps it, so that on the host one thread makes it, beside those that make
  /// others.
  bool is_small() const { return elements() <= kCachedElements; }
  int64_t held_elements() const;  ///< of a tp rank's piece
};

/// Neighbouring buffers that lie over the same ranks.
struct MuonPart {
  std::vector<int> buffers;
  std::vector<MuonMatrix> matrices;  ///< by owner, then in the order of buffers
  std::vector<int64_t> counts;       ///< elements of a piece that each of the ranks makes
};

/// The piece of a matrix in one shard, contiguous in memory.
struct MuonRun {
  int buffer, param;
  int shard;
  int64_t begin, elements;  ///< in the shard
  int64_t held;             ///< where it begins in the matrix, of which a tp rank has a piece
};

/// A matrix that a rank makes.
struct MuonMade {
  int matrix;  ///< of the part
  /// For runs of several shards: begins there, among what is joined. Else among the runs of its
  /// shard that its replica makes.
  bool is_joined;
  int64_t begin;
};

/// A run of a matrix that is joined.
struct MuonJoin {
  int shard;
  /// Among what is received; of the own shard, among its runs that its replica makes.
  int64_t from;
  int64_t to;  ///< among what is joined
  int64_t elements;
};

/// One rank's share of a part: (shard, replica) of its buffers.
struct MuonShare {
  int rank = 0;                      ///< among those that share the work
  std::vector<MuonRun> runs;         ///< of its shard, by the replica of their owner, its own last
  std::vector<int64_t> of_replicas;  ///< elements of these, by the replica of their owner
  std::vector<MuonMade> made;
  std::vector<MuonJoin> joins;  ///< shard by shard
  int64_t joined_elements = 0;
  std::vector<int64_t> sent;      ///< elements of `runs` for each other shard's rank of its replica
  std::vector<int64_t> received;  ///< elements of `joins` from these
};

/// `joins_all`: also what lies in one of several shards, since its tp pieces are gathered at once.
MuonShare muon_share(const MuonPart& part, const std::vector<FlatBuffer>& buffers,
                     const Sharding& sharding, int shard, int replica, bool joins_all);

/// The bytes that a rank needs besides the buffers of a part while it is computed.
struct MuonElements {
  int64_t moved = 0;  ///< runs of its shard, and what of its matrices comes from other shards
  /// Matrices that are joined, the pieces of all tp ranks, and iterations that go on at once, each
  /// of which holds its matrix, what a step makes of it, their operands in vectors, and four
  /// squares.
  int64_t made = 0;
};

/// The work of each rank that shares it, replica by replica; of thousands of them as fast as of
/// one. `threads` make small matrices side by side.
std::vector<MuonElements> muon_elements(const MuonPart& part,
                                        const std::vector<FlatBuffer>& buffers,
                                        const Sharding& sharding, int tp, int64_t threads);

/// The work for the buffers that a rank holds, in their order. Matrices are dealt to the ranks of a
/// part by their multiplications, costliest first: to one that has most of it in its shard, unless
/// that would have more than its part; else to the least loaded.
std::vector<MuonPart> muon_parts(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                 const std::vector<Sharding>& shardings, const ParamShards& cuts,
                                 const std::vector<ParamRule>& rules, const std::vector<int>& held);

}  // namespace zea
