// SPDX-License-Identifier: Apache-2.0
// The seconds of a unit's kernels and of the calls between ranks, by the rates of a hardware file.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "deck/hardware.hpp"
#include "estimate/traffic.hpp"
#include "layout/microbatch_rows.hpp"
#include "layout/reduction.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Seconds of a unit in one microbatch on one rank, without communication.
struct UnitSeconds {
  double forward = 0, backward_input = 0, backward_weight = 0;
  /// The parts of forward and of backward_input that are attention.
  double attention_forward = 0, attention_backward = 0;
  double selective = 0;  ///< of selective recomputation
  /// Seconds of an operation's GEMMs: its output, and the gradients of its input and its weight.
  struct Gemms {
    double output = 0, input = 0, weight = 0;
  };
  std::vector<Gemms> gemms = {};  ///< by operations of the unit

  double backward() const { return backward_input + backward_weight; }
  /// Seconds of the kernels that backward runs again.
  double again(Recompute what) const {
    return what == Recompute::Full ? forward : what == Recompute::Selective ? selective : 0;
  }
};

/// The times of units, whose kernels run one after the other: GEMMs by FLOPs and their smallest
/// dimension, attention by its visible pairs, elementwise operations by the bytes that they read
/// and write. A unit takes at least as long as the host takes to launch its operations; if the host
/// does not launch ahead, that time is added.
class UnitTimes {
 public:
  /// Throws PlanError if the file has no peak for the type of a module. Both arguments outlive
  /// this.
  UnitTimes(const Plan& plan, const DeviceRates& rates);

  /// The class of a unit: units of a class take equally long for equal rows.
  int class_of(int unit) const { return classes_[static_cast<size_t>(unit)]; }
  const UnitSeconds& of(int unit, const ModuleRows& rows);

 private:
  UnitSeconds computed(int unit, const ModuleRows& rows) const;

  const Plan& plan_;
  const DeviceRates& rates_;
  std::vector<bool> gradients_;
  std::vector<int> classes_;
  std::map<std::tuple<int, int64_t, int64_t, bool, int64_t, int64_t, double>, UnitSeconds> known_;
};

/// The nodes of the ranks of a group, as one of them sees it.
struct GroupNodes {
  int ranks = 1, nodes = 1;
  int per_node = 1;      ///< ranks of the group on the node that has the fewest
  double elsewhere = 0;  ///< share of the others that are on other nodes
};

/// The nodes of `members`, as `world_rank`, one of them, sees it.
GroupNodes nodes_of_group(int world_rank, const std::vector<int>& members,
                          const std::vector<int>& node_of);

/// Seconds of a call in a group on these nodes. Rings and trees (all-gather, reduce-scatter,
/// all-reduce) leave a node by the links of all members there: bytes are sent at the lower of the
/// rate inside a node and per_node times that between nodes; a ring adds ranks - 1 hops, a tree 2
/// log2(ranks). Other messages go to each peer over the link to its node, over both kinds of links
/// at the same time.
double call_seconds(const SentCall& call, const GroupNodes& nodes, const Hardware& hardware);

/// Returns the seconds of a call inside a unit that GEMMs do not hide: the rows for a linear's
/// weight gradient are sent during the GEMM of its input's gradient, and the sum of that gradient
/// during the GEMM of the weight's. In chunks, a linear's rows are also sent during the GEMM that
/// reads or makes them.
double exposed_seconds(const SentCall& call, double seconds, const UnitSeconds& kernels,
                       bool overlaps);

class CallTimes {
 public:
  /// `node_of`: of each logical rank. All arguments outlive this.
  CallTimes(const Plan& plan, const std::vector<int>& node_of, const Hardware& hardware);

  double seconds(int world_rank, const SentCall& call);
  /// An all-reduce of so many bytes over all ranks.
  double of_all_ranks(int64_t bytes) const;

 private:
  GroupNodes nodes_of(int world_rank, const std::string& group) const;
  GroupNodes nodes_of(int world_rank, const RankLink& link) const;

  const Plan& plan_;
  const std::vector<int>& node_of_;
  const Hardware& hardware_;
  const std::vector<RankGroups> groups_;
  std::map<std::pair<int, std::string>, GroupNodes> known_;
};

}  // namespace zea
