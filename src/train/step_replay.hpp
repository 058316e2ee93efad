// SPDX-License-Identifier: Apache-2.0
// Replay of a step (run.replay_every): ranks compute forward and backward of the microbatches of
// another replica, then of their own, and compare hashes of all values bit for bit. All ranks of a
// replica move together (moved()), so each does the work of the rank with its tp, cp and pp
// coordinates, and sums over these axes have the same order. Where no other replica can do so
// (replay_distance()), the ranks repeat their own work.
//
// The last pass over a rank's own microbatches leaves the gradients of the step, so a replay adds
// no memory for gradients and changes no bit of them. If hashes differ, further passes decide
// between a transient error, hardware and software.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "data/sampler.hpp"
#include "train/pass_hashes.hpp"
#include "train/train_step.hpp"

namespace zea {

enum class ReplayVerdict {
  Transient,   ///< one pass was wrong, and two others have the same bits
  Persistent,  ///< in every pass, one rank computes different bits than another rank
  Software     ///< the same work gives different bits in every pass, on the replaying rank, too
};
const char* replay_verdict_name(ReplayVerdict verdict);

/// The hashes of one rank's part of a step.
struct ReplayedPart {
  int first_rank = 0, replaying_rank = 0;  ///< the same if ranks repeat their own work
  int third_rank = -1;                     ///< -1: there is none
  ValueHashes replayed;                    ///< by the replaying rank
  ValueHashes first;                       ///< by the first rank, after that
  // Filled if some part of the step differs.
  ValueHashes replayed_again, by_third, again;  ///< in this order; `again` by the first rank
};

struct ReplayFinding {
  int64_t step = 0;  ///< counts from 1
  ReplayVerdict verdict = ReplayVerdict::Transient;
  std::vector<int> ranks =
      {};                     ///< that made the error, or between which it is undecided; ascending
  bool is_undecided = false;  ///< only one of `ranks` computes wrong bits
  ValueHash where = {};       ///< the first value that differs
  std::string unit = {};      ///< its unit, or the buffer of its gradient
  std::vector<std::string> hosts = {};  ///< of `ranks`
};

/// Returns the verdict over the parts of all ranks, without step, unit and hosts; nullopt: nothing
/// differs. If several parts differ, for instance because tp ranks exchanged a wrong value, the
/// gravest verdict counts, and then the error that comes first in the model. Throws InternalError
/// if passes over a part computed different kinds of values.
std::optional<ReplayFinding> judge_replay(const std::vector<ReplayedPart>& parts);

/// Says in one sentence what was found and what to do.
std::string describe(const ReplayFinding& finding);

/// Returns whether blocks of so many consecutive ranks are distributed over hosts in the same way.
bool lie_alike(const std::vector<std::string>& hosts, int ranks);

class StepReplay {
 public:
  /// Runs forward, backward and all sums of gradients (TrainStep::walk).
  using Walk = std::function<StepLoss(const RankStep&, const std::vector<Microbatch>&)>;
  using Report = std::function<void(const ReplayFinding&)>;

  /// `engine` is observed by `hashes`, and `loading` is how its steps load samples of `dataset`.
  /// `report` is called on all ranks. Everything outlives this.
  StepReplay(Engine& engine, PassHashes& hashes, Collectives& control, const Dataset& dataset,
             LoaderOptions loading, Report report);

  /// Returns whether groups of ranks that replay each other's work are distributed over nodes
  /// alike. Otherwise collectives may sum in another order, and each rank repeats its own work.
  bool lies_alike() const { return lie_alike_; }
  /// Returns whether step `step`, counted from 1, is replayed.
  bool is_due(int64_t step) const;
  /// Runs `walk` over other microbatches, then over those of `step`, and returns the loss of the
  /// latter. After a transient error `walk` runs again, and the loss and gradients are those on
  /// which two passes agree. Throws an Error of ExitCode::SickNode on all ranks after other errors.
  /// Collective.
  StepLoss run(const RankStep& step, const std::vector<Microbatch>& microbatches, const Walk& walk);

 private:
  struct Work {
    RankStep step;
    std::vector<Microbatch> microbatches;
  };
  struct Pass {
    ValueHashes hashes;
    std::vector<int64_t> digests;  ///< of the hashes of each rank
    StepLoss loss;
  };

  Work load(int64_t step, int distance);
  Pass pass(const RankStep& step, const std::vector<Microbatch>& microbatches, const Walk& walk);
  std::vector<ValueHashes> of_all_ranks(const ValueHashes& own);
  int rank_before(int rank, int distance) const;

  Engine& engine_;
  PassHashes& hashes_;
  Collectives& control_;
  const Dataset& dataset_;
  const LoaderOptions loading_;
  const Report report_;
  int distance_;
  bool lie_alike_;
  Sampler sampler_;
};

}  // namespace zea
