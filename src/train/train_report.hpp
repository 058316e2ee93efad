// SPDX-License-Identifier: Apache-2.0
// The log lines and metrics of a training run: sums since the last line, with the numbers that
// ranks gather for it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.hpp"
#include "core/system.hpp"
#include "data/loader.hpp"
#include "train/memory_watch.hpp"
#include "train/metrics.hpp"
#include "train/trainer_parts.hpp"
#include "watch/slow_ranks.hpp"

namespace zea {

/// Numbers of all ranks for a log line. They are gathered while the next step is launched, so no
/// rank waits for another.
class IntervalFacts {
 public:
  struct OfRanks {
    std::vector<double> own_seconds;   ///< of each rank
    std::optional<DeviceMemory> most;  ///< the largest of any rank; none on the host
  };

  explicit IntervalFacts(Collectives& control) : control_(control) {}

  /// Begins to gather facts of the steps that end here; earlier ones were finished. `memory` is
  /// there on all ranks or on none. Collective.
  void begin(double own_seconds, const std::optional<DeviceMemory>& memory);
  /// Returns whether facts were begun and not finished.
  bool are_begun() const { return !all_.empty(); }
  /// Waits for the facts of all ranks.
  OfRanks finish();

 private:
  Collectives& control_;
  bool has_memory_ = false;
  std::vector<double> own_, all_;
  Pending pending_;  ///< ends before the memory that it reads and writes
};

class TrainReport {
 public:
  /// The parts outlive it. Collective.
  explicit TrainReport(const TrainerParts& parts);

  /// Warns of differences from the resumed run, which may be meant or a mistake.
  void warn_of_resumed(const TrainPosition& start, const TrainPosition& now) const;

  /// Step `step` (they count from 1) begins, with the loading of its samples.
  void begin_step(int64_t step);
  /// Its samples are loaded; prints the predicted memory of the first step. Collective.
  void loaded(const LoadedStep& loaded);
  /// Notes the masked items of a microbatch; returns how many this rank answers for.
  int64_t note_bad_items(const LoadedMicrobatch& part);
  /// The step has been launched, or run.
  void end_step(const RankStep& step);
  /// Adds the step to the interval; log lines of steps before it come first. If a line is due
  /// (`logs`), its facts are begun. Collective if so.
  void count_step(const RankStep& step, bool logs);

  /// Adds what came of a step, with warnings. Collective.
  void judged(const StepReport& report);
  /// Prints the line of the interval, which ends with this step. Collective.
  void log(const StepReport& report, bool last);
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
    double model_flops = 0;
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
