// SPDX-License-Identifier: Apache-2.0
// The schedule trace: the computations of a step at one stage group, in the order in which all its
// ranks in all replicas make them; which of them have work here and on any other rank, when each
// buffer has to be gathered, and when its gradient is complete. Of other replicas it knows only the
// kinds of their microbatches, so it takes no longer if there are more of them.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "schedule/schedule.hpp"

namespace zea::detail {

/// One computation on a unit that some ranks of the job may make.
struct Compute {
  ActionKind kind;  ///< Forward, Backward, BackwardInput, BackwardWeight
  int unit;
  int microbatch;
};

/// A run of computations, `first` to `last` of the trace, for which a buffer stays gathered.
struct LiveRange {
  int buffer;
  size_t first;
  size_t last;
  bool from_subgroup = false;  ///< gathered from the smaller group
  bool to_subgroup = false;    ///< dropped to it afterwards
};

/// A run of backwards that add to one gradient before it is reduced.
struct Accumulation {
  int buffer;
  size_t first;
  size_t last;
};

/// The ranks whose work counts: this rank's replica, its shard group, or all.
enum class Peers { Replica, ShardGroup, Job };

class ScheduleTrace {
 public:
  explicit ScheduleTrace(const ScheduleInput& input);

  size_t size() const { return computes_.size(); }
  const Compute& operator[](size_t i) const { return computes_[i]; }
  const ScheduleInput& input() const { return input_; }
  bool runs_in_replica(size_t i) const { return runs_on(i, Peers::Replica); }
  /// For an encoder's units, whether this rank has items, too.
  bool runs_here(size_t i) const { return runs_in_replica(i) && has_items(computes_[i]); }
  /// The units of other modules at this stage group whose outputs computation `i` reads, or whose
  /// outputs' gradients it makes, where they have work in this rank's replica.
  std::vector<int> moved_units(size_t i) const;

  /// The ranges in which `buffer`, which is sharded, is gathered; in order.
  std::vector<LiveRange> live_ranges(int buffer) const;
  /// The reductions of a trainable buffer to its shards; in order.
  std::vector<Accumulation> accumulations(int buffer) const;
  /// The last backward of the job that adds to a trainable buffer, if any does.
  std::optional<size_t> last_backward(int buffer) const;
  /// Where the gathering for a live range starts.
  struct Point {
    size_t index;
    bool after;  ///< the computation; else before it
  };
  Point unshard_point(const LiveRange& range) const;
  /// The sends and receipts of a pass.
  struct Transfers {
    Point receive_point;  ///< where its receipts start, all of them
    std::vector<Action> receives;
    std::map<size_t, std::vector<Action>> sends_after;  ///< by computation, neighbors to one group
  };
  std::vector<Transfers> transfers() const;

 private:
  /// Sends and receives before, or after, computation `i`, where this rank has work in it.
  std::vector<Action> transfers(size_t i, bool before) const;
  void add_pass(const Pass& pass);
  bool has_items(const Compute& compute) const;
  /// Whether a step of this kind runs the unit at all.
  bool takes_part(int unit) const;
  static Peers peers_along(std::initializer_list<const std::vector<Axis>*> sets);
  bool runs_on(size_t i, Peers peers) const;
  /// Whether each unit has work in a microbatch.
  struct Work {
    std::vector<bool> forward, backward;
  };
  Work work_of(const MicrobatchKinds& kinds) const;
  const Work& work_here(int microbatch) const { return work_[0][microbatch]; }
  void find_received_units();
  std::vector<int> received_units(const Compute& compute) const;
  /// The other stage groups that read its output.
  std::vector<int> reading_groups(const Compute& compute) const;
  /// The computations of the units that read `buffer`, whether or not they have work; in order.
  const std::vector<size_t>& all_uses(int buffer) const { return uses_of_buffer_[buffer]; }
  /// Returns the uses that some rank of its shard group makes.
  std::vector<size_t> uses(int buffer) const;
  /// The computation that is `units` units with parameters before `index`, if there is one.
  std::optional<size_t> units_before(size_t index, int units) const;
  bool is_contiguous(size_t a, size_t b, int fsdp_unit) const;
  bool is_between_forward_and_backward(size_t a, size_t b) const;

  const ScheduleInput& input_;
  std::vector<bool> joint_;                ///< units with has_joint_backward(), where that applies
  std::array<std::vector<Work>, 3> work_;  ///< [Peers][microbatch]
  std::vector<Compute> computes_;
  std::vector<size_t> first_of_pass_;  ///< computation
  std::vector<std::vector<size_t>> computes_of_unit_, uses_of_buffer_;
  std::vector<std::vector<int>> readers_;  ///< of each unit's output, ascending
  /// For each unit here those of other stage groups whose outputs are received before it,
  /// ascending.
  std::vector<std::vector<int>> received_;
};

}  // namespace zea::detail
