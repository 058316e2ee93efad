// SPDX-License-Identifier: Apache-2.0
// The ranges of a rank's shards whose gradients are summed with those of other ranks that hold the
// same parameters (reduction.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/plan.hpp"

namespace zea {

/// The ranks along tp, those of them with the same KV head, or those at other stages with the same
/// tied parameters.
enum class ReplicationKind { Tp, Kv, Tied };

/// A group of ranks that replicate parameters; `tied` is an index in ModuleGrid::tied_stages.
struct ReplicationGroup {
  ReplicationKind group;
  int tied = 0;

  bool operator==(const ReplicationGroup&) const = default;
};

/// Returns the groups of a module, in one order on all ranks, tied ones last.
std::vector<ReplicationGroup> replication_groups(const ModuleGrid& grid);

/// A range of a shard whose parameters are replicated by the same ranks.
struct ReplicatedRange {
  int buffer;
  int64_t begin, elements;  ///< in the shard
  double scale;             ///< factor of each rank's gradient in the sum
};

/// The ranges whose gradients are summed over one replication group.
struct ReplicatedRanges {
  std::string module;
  ReplicationGroup holders;
  std::vector<ReplicatedRange> ranges;
  /// The owned gradient is sent in place: it is one range, on the computing device. Otherwise
  /// ranges are packed.
  bool in_place = false;

  bool is_tied() const { return holders.group == ReplicationKind::Tied; }
  int64_t elements(const std::vector<bool>& buffers_with_gradient) const;
};

/// Returns the ranges of `world_rank`, in one order on all ranks; tied ones are summed after the
/// others.
std::vector<ReplicatedRanges> replicated_ranges(const Plan& plan, int world_rank);

/// Returns the largest number of bytes that are packed for these sums at once.
int64_t packed_replicated_bytes(const Plan& plan, int world_rank);

}  // namespace zea
