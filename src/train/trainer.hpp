// SPDX-License-Identifier: Apache-2.0
// The training loop: steps, evaluations, saves and log lines, each when the deck asks for it. What
// outlives the loop comes in as TrainerParts; its loader, its saves and its counts are its own.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/checkpoint_writer.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "data/loader.hpp"
#include "io/manifest.hpp"
#include "train/cache_features.hpp"
#include "train/evaluate.hpp"
#include "train/interval_facts.hpp"
#include "train/made_steps.hpp"
#include "train/memory_watch.hpp"
#include "train/metrics.hpp"
#include "train/stop_request.hpp"
#include "train/train_step.hpp"
#include "watch/slow_ranks.hpp"

namespace zea {

/// What the loop works with; all of it outlives the loop.
struct TrainerParts {
  Engine& engine;
  Optimizer& optimizer;
  Collectives& control;  ///< host collectives over all ranks
  const Dataset& train;
  const Dataset* eval;  ///< null: none
  LoaderOptions loading;
  FeatureCaches features = {};  ///< that steps read in place of items
  StopRequest& stop;
  Log& log;
  const MetricsFile& metrics;
  TensorBytes& tensor_bytes;
  double peak_tflops = 0;  ///< of all ranks together; 0: not known
  std::string run_directory;
  std::string run_id;
  std::string deck;                        ///< resolved TOML, for checkpoints
  const WeightsSource* weights = nullptr;  ///< that the engine's values were read from, if any
  const Options* resumed = nullptr;        ///< the deck of the checkpoint that they are of; or null
};

class Trainer {
 public:
  Trainer(const TrainerParts& parts, const TrainPosition& start);

  /// Trains to the last step, or until asked to leave: then Requeue. Collective.
  ExitCode run();
  const TrainPosition& position() const { return position_; }

 private:
  /// Sums since the last logged line.
  struct Interval {
    double seconds = 0, wait_seconds = 0, own_seconds = 0;
    int64_t steps = 0, tokens = 0, samples = 0;
    double model_flops = 0;
    int64_t bad_items = 0, skipped = 0;
    Traffic sent;
  };

  std::vector<StepReport> train_one(MadeSteps& source);
  std::vector<StepReport> run_step(const MadeSteps& source, MadeStep& made);
  void take(const StepReport& report);
  MadeStep load(MadeSteps& source);
  ActionRecord& record() { return parts_.engine.mesh().record(); }
  bool traces() const { return position_.step + 1 == options_.log.trace_step; }
  void begin_trace();
  void end_trace();
  bool is_due(int64_t every) const;
  double seconds_to_leave() const;
  bool evaluation_is_due(bool last) const;
  void warn_of_bad_items();
  void report_skip(const StepReport& report);
  std::vector<int64_t> samples_of_step(int64_t step) const;
  void tell_facts();
  void log_step(const StepReport& report, bool last);
  void watch_data();
  void log_summary() const;
  void run_evaluation();
  void warn_of_resumed(const TrainPosition& start);
  ExitCode train(MadeSteps& source);
  void save(bool must);
  void advance_save();
  void finish_save(bool must);
  void finish_removal();
  void warn_of_removal();
  void try_to_save(bool must, const std::function<void()>& part);
  void report_save(const SaveReport& report);
  template <class Metrics>
  void append_metrics(const Metrics& metrics);

  TrainerParts parts_;
  const Options& options_;
  CheckpointWriter writer_;
  TrainStep step_;
  MemoryWatch memory_;
  SlowRanks slow_ranks_;
  IntervalFacts facts_;
  int64_t trace_origin_ = 0;
  TrainPosition position_;
  Interval interval_;
  std::string bad_lines_;  ///< of this rank's bad items that no report has counted yet
  Traffic sent_;           ///< by this rank in the steps of this run
  int64_t steps_done_ = 0;
  double seconds_per_step_ = 0;  ///< moving averages: how long one more step and a checkpoint take
  double seconds_per_save_ = 0;
  double seconds_per_evaluation_ = 0;
  int64_t saved_step_ = -1;  ///< of the last save, which may still be under way
  /// The last step before that save went on: what was told until then of its files is old.
  int64_t advanced_step_ = -1;
};

}  // namespace zea
