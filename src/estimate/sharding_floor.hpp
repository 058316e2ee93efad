// SPDX-License-Identifier: Apache-2.0
// Lower bounds of the seconds and memory of sharding strategies, for layouts with the same grids:
// they need the plan of only one of these.
#pragma once

#include <vector>

#include "deck/hardware.hpp"
#include "layout/axis.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

class ShardingFloor {
 public:
  /// `plan` needs no slots. `microbatches`: the least number of the timed replica. `hardware` and
  /// `node_of` (of each logical rank) outlive this.
  ShardingFloor(const Plan& plan, int64_t microbatches, const Hardware& hardware,
                const std::vector<int>& node_of);

  struct Least {
    /// Bytes per rank of each stage group: owned, and owned plus gathered and not yet reduced.
    std::vector<int64_t> owned = {}, held = {};
    double update = 0;   ///< seconds of the optimizer
    double streams = 0;  ///< seconds of the busiest stream of data-parallel calls
  };
  /// `options` are those of a layout with the same grids.
  Least of(const Options& options) const;

 private:
  /// Elements of a module's parameters (or their tp shards) on the ranks of a stage group.
  struct Part {
    const ModuleGrid* grid;
    double trained = 0, frozen = 0;
    double largest = 0;        ///< of a buffer
    double largest_param = 0;  ///< of a parameter
    double states = 0;         ///< bytes
  };

  double stream_seconds(const Part& part, const Sharding& sharding, const MeshShape& mesh,
                        int rank) const;

  const Hardware& hardware_;
  const std::vector<int>& node_of_;
  MeshShape mesh_;
  Precisions precisions_;
  bool is_pipelined_, trains_;
  bool may_regather_;  ///< plans within a limit may gather for each use what they keep otherwise
  double microbatches_;
  std::vector<int> ranks_;                ///< the first of each stage group
  std::vector<std::vector<Part>> parts_;  ///< of each stage group
  size_t largest_ = 0;                    ///< the stage group with most of the decoder
};

}  // namespace zea::detail
