// SPDX-License-Identifier: Apache-2.0
// The log lines and metrics of a training run: sums since the last line, with the numbers that
// ranks exchange for it; and the objects that the parts of a training loop share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.hpp"
#include "core/log.hpp"
#include "core/system.hpp"
#include "data/loader.hpp"
#include "estimate/memory_estimate.hpp"
#include "optim/optimizer.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/engine.hpp"
#include "train/cache_features.hpp"
#include "train/metrics.hpp"
#include "train/step_replay.hpp"
#include "train/stop_request.hpp"
#include "watch/slow_ranks.hpp"

namespace zea {

/// The objects that a training loop works with, which outlive it.
struct TrainerParts {
  Engine& engine;
  Optimizer& optimizer;
  Collectives& control;  ///< host collectives over all ranks
  const Dataset& train;
  const Dataset* eval;  ///< null: none
  LoaderOptions loading;
  PassHashes* hashes = nullptr;  ///< that observe the engine, for run.replay_every; null: none do
  FeatureCaches features = {};   ///< cached features that steps read in place of items
  StopRequest& stop;
  Log& log;
  const MetricsFile& metrics;
  TensorBytes& tensor_bytes;
  double peak_tflops = 0;  ///< of all ranks together; 0: not known
  std::string run_directory;
  std::string run_id;
  std::string deck;                        ///< resolved TOML, for checkpoints
  std::string job_info = {};               ///< JSON on rank 0, for checkpoints; empty: none
  const WeightsSource* weights = nullptr;  ///< source of the engine's values; null: none
  const Options* resumed = nullptr;        ///< the deck of the resumed checkpoint; null: none
  int64_t last_step = 0;                   ///< after which the run leaves; 0: none
};

/// An estimate of how long something takes.
struct MovingAverage {
  double value = 0;  ///< 0: nothing was added
  void add(double next) { value = value == 0 ? next : 0.7 * value + 0.3 * next; }
};

/// Memory of training on this rank: predicted by the plan, and counted while it runs, over host
/// tensors or by the device's allocator.
class MemoryWatch {
 public:
  /// All arguments outlive it.
  MemoryWatch(TensorBytes& bytes, Engine& engine, const SampleTable& index);

  /// In the first step, returns on the root rank the predicted memory of the rank that needs
  /// most. Collective then.
  std::optional<std::string> predict(const RankStep& step, Collectives& control);
  /// Enclose a step, from before its microbatches are made.
  void begin_step();
  void end_step(const RankStep& step);
  /// Returns the peak of all tensors over all steps, with the workspaces of libraries on a
  /// device; 0: not counted.
  int64_t peak_bytes() const { return peak_; }
  /// Returns the device's memory, with peaks since the last call. None on the host.
  std::optional<DeviceMemory> take_device_memory();
  /// Describes the predicted and counted memory of the step that took most; empty: not
  /// counted.
  std::string summary() const;

 private:
  at::Device device() const { return engine_.microbatch_options().device; }
  int64_t counted_peak() const;
  void note_device_peaks();

  TensorBytes& bytes_;
  Engine& engine_;
  const SampleTable& index_;
  bool has_predicted_ = false;
  int64_t peak_ = 0, predicted_ = 0, step_ = 0;
  int64_t peak_allocated_ = 0,
          peak_reserved_ = 0;  ///< of the device, since the last take_device_memory()
  /// Requested from the device before the first step, and the excess over that before the
  /// second: libraries keep their workspaces from the first GEMM on.
  std::optional<int64_t> before_steps_, kept_;
};

/// Numbers of all ranks for a log line. One reduction exchanges them, so a rank sends few messages,
/// while the next step is launched, so no rank waits for another.
class IntervalFacts {
 public:
  struct OfRanks {
    std::vector<double> own_seconds;   ///< of each rank
    std::optional<DeviceMemory> most;  ///< the largest of any rank; none on the host
  };

  explicit IntervalFacts(Collectives& control) : control_(control) {}

  /// Begins to exchange facts of the steps up to this one; earlier facts must be finished.
  /// `own_seconds` is 0 or more. `memory` is given on all ranks or on none. Collective.
  void begin(double own_seconds, const std::optional<DeviceMemory>& memory);
  /// Returns whether facts were begun and not finished.
  bool are_begun() const { return !all_.empty(); }
  /// Waits for the facts of all ranks.
  OfRanks finish();

 private:
  Collectives& control_;
  bool has_memory_ = false;
  std::vector<double> all_;  ///< seconds of each rank, then the memory
  Pending pending_;          ///< ends before the memory that it reads and writes
};

class TrainReport {
 public:
  /// The parts outlive it. Collective.
  explicit TrainReport(const TrainerParts& parts);

  /// Warns of differences from the resumed run, which may be meant or a mistake.
  void warn_of_resumed(const TrainPosition& start, const TrainPosition& now) const;

  /// Announces step `step` (from 1 on), which begins with the loading of its samples.
  void begin_step(int64_t step);
  /// Announces that its samples are loaded; prints the predicted memory of the first step.
  /// Collective.
  void loaded(const LoadedStep& loaded);
  /// Notes the masked items of a microbatch; returns the number that this rank counts.
  int64_t note_bad_items(const LoadedMicrobatch& part);
  /// The step has been launched, or run.
  void end_step(const RankStep& step);
  /// Adds the step to the interval; log lines of steps before it come first. If a line is due
  /// (`logs`), its facts are begun. Collective if so.
  void count_step(const RankStep& step, bool logs);

  /// Adds the result of a step, with warnings. Collective.
  void judged(const StepReport& report);
  /// Prints the line of the interval, which ends with this step. Collective.
  void log(const StepReport& report, bool last);
  /// Records what the replay of a step found; warns of it if training goes on.
  void replayed(const ReplayFinding& finding);
  /// Prints and records a finished save.
  void saved(const SaveReport& report);
  /// Records the step at which the guard ended the run.
  void stopped(const NonFiniteError& error, int64_t step, int64_t skipped_before);
  /// Checks the data's files, on one rank for all. Data that changes under the run ends it before
  /// it is in a checkpoint.
  void check_data();
  void summarize(const TrainPosition& position, const std::string& graphs) const;

 private:
  /// Sums since the last log line.
  struct Interval {
    double seconds = 0, wait_seconds = 0, own_seconds = 0;
    int64_t steps = 0, tokens = 0, samples = 0;
    double model_flops = 0, unmasked_flops = 0;
    int64_t bad_items = 0, skipped = 0;
    Traffic sent;
  };

  ActionRecord& record() const { return parts_.engine.mesh().record(); }
  void begin_trace();
  void end_trace();
  std::vector<int64_t> samples_of_step(int64_t step) const;
  void report_skip(const StepReport& report);
  void begin_facts();
  template <class Metrics>
  void append(const Metrics& metrics);

  const TrainerParts& parts_;
  const Options& options_;
  MemoryWatch memory_;
  SlowRanks slow_ranks_;
  IntervalFacts facts_;
  Interval interval_;
  std::string bad_lines_;  ///< of this rank's bad items that no report has counted yet

  Stopwatch step_clock_;  ///< of the step that has begun
  double load_seconds_ = 0, waited_before_ = 0;
  Traffic sent_before_;
  bool traces_ = false;
  int64_t trace_origin_ = 0;

  Traffic sent_;  ///< by this rank in the steps of this run
  int64_t steps_done_ = 0;
};

}  // namespace zea
