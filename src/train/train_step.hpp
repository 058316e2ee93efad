// SPDX-License-Identifier: Apache-2.0
// One optimizer step, from loaded microbatches to updated shards: its actions, or their CUDA graph;
// the numbers that all ranks sum once per step besides gradients, by which alone all ranks decide
// the same; and its report.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/captured_graph.hpp"
#include "comm/collectives.hpp"
#include "core/system.hpp"
#include "optim/optimizer.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/engine.hpp"
#include "parallel/replicated_grad_sync.hpp"
#include "train/expert_loads.hpp"
#include "train/router_losses.hpp"
#include "train/step_guard.hpp"

namespace zea {

class StepReplay;

/// Sums over ranks.
struct StepFlags {
  double save = 0;     ///< ranks that were asked to write a checkpoint
  double leave = 0;    ///< ranks that were asked to write a checkpoint and leave
  double writing = 0;  ///< ranks whose file of a checkpoint is still being written
};

struct StepSums {
  double loss = 0, targets = 0;
  double squares = 0;  ///< of the gradient of the loss
  double bad_items = 0;
  double mtp_loss = 0;  ///< EngineResult::mtp_loss
  StepFlags flags = {};
};

/// This rank's loss of a step: EngineResult::loss and mtp_loss, undefined where there is none.
struct StepLoss {
  at::Tensor all, mtp;
};

/// Guards the division by the norm, as torch.nn.utils.clip_grad_norm_ does.
inline constexpr double kClipEps = 1e-6;

/// The message of the all-reduce.
using StepSumValues = std::array<double, sizeof(StepSums) / sizeof(double)>;

/// The end of a step on a device, which sums and checks without the host, so that the update can be
/// launched at once. The host may read sums and seconds later. The seconds are measured between two
/// events of the device's stream; the first is recorded when the step begins on the host. If the
/// device is late, it reaches the first event when the step before is done, so the device's time
/// counts; if the host is late, loading and launching count. Work between steps never counts.
class DeviceStepEnd {
 public:
  /// `world`: the device's collectives over all ranks, which outlive this.
  DeviceStepEnd(Collectives& world, at::Device device, double clip_norm);

  /// Announces that a step begins on the host; the device may still execute the one before.
  void begin();
  /// Launches the sum of `own` over all ranks, with `loss` and `squares`, scalars on the device.
  /// Does not wait. Collective; the results of the step before have been read.
  void sum(const StepSums& own, const StepLoss& loss, const at::Tensor& squares);
  /// Returns a number in the device's memory for work launched after sum(): the factor of the
  /// gradient (clipping and 1/N), NaN where loss or norm is not finite or there is no target.
  const double* scale() const { return scale_.const_data_ptr<double>(); }
  /// Announces that all of the step has been launched.
  void end();

  struct Result {
    StepSums sums;
    double seconds;
  };
  /// Waits until the device has done the step that ended last.
  Result wait();

 private:
  at::Tensor scale_of(const at::Tensor& sums) const;

  Collectives& world_;
  at::Device device_;
  double clip_norm_;
  at::Tensor sent_, received_;  ///< StepSumValues in pinned memory
  at::Tensor scale_;
  c10::Event next_,
      begun_;  ///< starts of a step that has not ended, and of the one that ended last
  c10::Event ended_;
};

/// CUDA graphs of steps up to the reduced gradients (run.cuda_graphs), one for each of the latest
/// shapes: the second step of a shape is captured, later ones are launched as its graph. A graph
/// reads the microbatches with which it was captured; those of later steps are copied into them.
class StepGraphs {
 public:
  /// Runs a step up to the sums of its gradients on the given microbatches. It must leave no state
  /// on the host, and in device memory only what every run writes again.
  using Walk = std::function<StepLoss(const std::vector<Microbatch>&)>;

  struct Counts {
    int64_t eager = 0, captured = 0, replayed = 0;
  };

  /// Keeps at most `shapes` graphs; `eager_step`, counted from 1, never uses one. `mesh`
  /// outlives this.
  StepGraphs(int64_t shapes, int64_t eager_step, Mesh& mesh, at::Device device);
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;
  ~StepGraphs();

  /// Runs `walk` on the microbatches of `step`, or launches its graph; all ranks do the same.
  /// The loss is valid until the next call.
  StepLoss run(const RankStep& step, const std::vector<Microbatch>& microbatches, const Walk& walk);

  const Counts& counts() const { return counts_; }
  /// Describes the counts in one sentence.
  std::string summary() const;

 private:
  struct Kept {
    StepShape shape;
    std::vector<Microbatch> microbatches = {};
    std::unique_ptr<GraphMemory> memory = {};
    std::unique_ptr<CapturedGraph> graph = {};
    StepLoss loss = {};  ///< in that memory
    Traffic sent = {};
  };

  void keep(const RankStep& step, const std::vector<Microbatch>& microbatches);
  void capture(Kept& kept, const Walk& walk);
  void launch(Kept& kept);

  const size_t most_;
  const int64_t eager_step_;
  Mesh& mesh_;
  const at::Device device_;
  const c10::Stream stream_;  ///< only for captures
  const c10::MempoolId_t pool_;
  GraphMemory held_;      ///< holds nothing: keeps the pool while one graph follows another
  const int group_;       ///< of launches, in the action record
  std::list<Kept> kept_;  ///< the latest first
  Counts counts_;
};

struct StepReport {
  int64_t step = 0;  ///< counts from 1
  double loss = 0;   ///< mean over the targets of the global batch
  /// The part of multi-token prediction, divided by the same targets, before its coefficient.
  double mtp_loss = 0;
  double grad_norm = 0;  ///< of the mean's gradient, before clipping
  double lr = 0;
  int64_t targets = 0;  ///< with bad items' samples left out
  int64_t bad_items = 0;
  double seconds = 0;            ///< since TrainStep::begin(), or as DeviceStepEnd says
  bool skipped = false;          ///< nothing was updated: no target in the global batch, or a fault
  std::string fault = {};        ///< why the guard skipped it; empty: it did not
  int64_t skipped_in_a_row = 0;  ///< by the guard, including this step
  StepFlags flags = {};          ///< over all ranks
  /// By layer; empty: no layer has experts, or a device judges the step.
  ExpertLoads::Imbalance expert_imbalance = {};
};

class TrainStep {
 public:
  /// `control`: host collectives over all ranks. `before_update` is called in every step right
  /// before the shards change. `replay` replays the steps that are due; null: none.
  TrainStep(Engine& engine, Optimizer& optimizer, Collectives& control,
            std::function<void()> before_update = {}, StepReplay* replay = nullptr);

  /// The next step begins with the loading of its samples: its seconds count from here.
  void begin();
  /// Runs `step`, which has begun, on this rank's microbatches. The optimizer's step and the
  /// guard's history in `position` go on; a skipped step advances neither the optimizer's step nor
  /// its states. Collective. Returns the report of the step before, unless finish() gave it. Throws
  /// NonFiniteError on all ranks, before anything is updated, for this step or the one before, and
  /// what StepReplay::run() throws.
  std::optional<StepReport> run(const RankStep& step, const std::vector<Microbatch>& microbatches,
                                int64_t bad_items, const StepFlags& flags, TrainPosition& position);
  /// Returns the report of the last step, once. Waits for the device if the device judges steps.
  /// Collective, as run().
  std::optional<StepReport> finish(TrainPosition& position);

  /// Returns whether finish() waits for a device, so that reports should be read a step late.
  bool is_checked_on_device() const { return device_end_.has_value(); }
  /// Returns the last step that was judged; steps count from 1.
  int64_t judged_step() const { return judged_step_; }

  /// Describes the use of run.cuda_graphs; empty without.
  std::string graphs_summary() const { return graphs_ ? graphs_->summary() : ""; }
  /// Returns the steps by their use of graphs; without run.cuda_graphs none of either kind.
  StepGraphs::Counts graph_counts() const {
    return graphs_ ? graphs_->counts() : StepGraphs::Counts{};
  }

 private:
  StepLoss run_walk(const RankStep& step, const std::vector<Microbatch>& microbatches);
  StepLoss walk(const RankStep& step, const std::vector<Microbatch>& microbatches);
  void end_on_device(const RankStep& step, const StepSums& own, const StepLoss& loss,
                     const TrainPosition& position);
  StepReport end_on_host(const RankStep& step, StepSums sums, const StepLoss& loss,
                         TrainPosition& position);
  StepReport settle(const StepSums& sums, int64_t step, TrainPosition& position);
  void update(const RankStep& step, const Update& update);
  std::string find_non_finite(const StepReport& report, int64_t update) const;
  void judge(StepReport& report, TrainPosition& position) const;

  Engine& engine_;
  ReplicatedGradSync replicated_grad_sync_;
  ExpertLoads expert_loads_;
  RouterLosses router_losses_;
  Optimizer& optimizer_;
  Collectives& control_;
  std::function<void()> before_update_;
  StepReplay* replay_;
  std::optional<DeviceStepEnd> device_end_;  ///< where the device judges
  Stopwatch host_clock_;
  std::optional<StepGraphs> graphs_;
  std::optional<StepReport> known_;   ///< of the last step, where the host judged it
  std::optional<int64_t> on_device_;  ///< the last step, where the device has yet to judge it
  int64_t judged_step_ = 0;
  at::Tensor squares_;  ///< of the step on the device: Optimizer::own_squares()
  std::map<int, std::vector<at::Tensor>> expert_ends_;  ///< of the latest walk
};

}  // namespace zea
