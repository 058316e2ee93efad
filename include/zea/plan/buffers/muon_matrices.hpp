// SPDX-License-Identifier: Apache-2.0
// The matrices that Muon orthogonalises, each a whole tensor of weights files; which buffers' are
// made together, who of the ranks with a copy of these makes which, and what they send each other.
#pragma once

#include <vector>

#include "zea/plan/buffers/flat_layout.hpp"
#include "zea/plan/model/param_rules.hpp"

namespace zea {

/// Matrices whose long side is so many times the short one are orthogonalised in products of the
/// short side alone, but for two.
inline constexpr int64_t kMuonLong = 2;

/// Elements of the buffers that are made together, at most, where one alone has not more: the work
/// on their matrices evens out over ranks, and small ones are sent in one call.
inline constexpr int64_t kMuonElements = int64_t{8} << 20;

struct MuonMatrix {
  Shape shape;                     ///< of the tensor
  int buffer;                      ///< where it lies
  std::vector<FlatParam> members;  ///< its parts in the buffer, of which a tp rank has a piece each
  int owner = 0;      ///< of the ranks that share the work: replica by replica, shard by shard
  int64_t begin = 0;  ///< of its members, one after the other, in what all ranks make

  int64_t elements() const { return shape[0] * shape[1]; }
  int64_t held_elements() const;  ///< of a tp rank's piece
};

/// Neighbouring buffers that lie over the same ranks.
struct MuonPart {
  std::vector<int> buffers;
  std::vector<MuonMatrix> matrices;  ///< by owner, then in the order of buffers
  std::vector<int64_t> counts;       ///< elements of a piece that each of the ranks makes

  int64_t first_made(int rank) const;  ///< where a rank's matrices begin among all
};

/// What lies of a matrix in a shard, one piece of memory.
struct MuonRun {
  int buffer, param;
  int shard;
  int64_t begin, elements;  ///< in the shard
  int64_t made;             ///< where it begins in what all ranks make
  int owner;
};

/// Of a part, what one rank has to do with: (shard, replica) of its buffers.
struct MuonShare {
  int rank = 0;                      ///< among those that share the work
  std::vector<MuonRun> runs;         ///< of its shard, in the order of what is made
  std::vector<int64_t> of_replicas;  ///< elements of these, by the replica of their owner
  std::vector<MuonRun> owned;        ///< of the matrices that it makes, shard by shard
  std::vector<int64_t> sent;         ///< elements of `runs` for each shard's rank of its replica
  std::vector<int64_t> received;     ///< elements of `owned` from each shard
};

MuonShare muon_share(const MuonPart& part, const std::vector<FlatBuffer>& buffers,
                     const Sharding& sharding, int shard, int replica);

/// Of the buffers that a rank holds, in their order. Matrices are dealt to the ranks of a part by
/// their multiplications, costliest first onto the least loaded.
std::vector<MuonPart> muon_parts(const ModelSpec& model, const std::vector<FlatBuffer>& buffers,
                                 const std::vector<Sharding>& shardings,
                                 const std::vector<ParamRule>& rules, const std::vector<int>& held);

}  // namespace zea
