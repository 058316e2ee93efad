// SPDX-License-Identifier: Apache-2.0
// Metrics of a run: metrics.jsonl, one JSON object per line for every logged step and
// evaluation, to which resumed runs append; the same numbers as TensorBoard events; and progress
// lines for people.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_writer.hpp"
#include "files/event_file.hpp"
#include "layout/collective_volume.hpp"
#include "parallel/device_memory.hpp"
#include "train/step_replay.hpp"
#include "train/train_step.hpp"
#include "watch/slow_ranks.hpp"

namespace zea {

/// A logged step; rates are over the steps since the last logged one.
struct StepMetrics {
  int64_t step = 0, steps = 0;
  StepReport report;
  double seconds = 0;  ///< since the run started
  double tokens_per_second = 0, samples_per_second = 0, seconds_per_step = 0;
  double model_tflops = 0;        ///< model FLOPs (unit_cost.hpp) per second and rank, / 1e12
  double mfu = 0;                 ///< share of the ranks' peak FLOP/s; 0: the peak is not known
  double mfu_unmasked = 0;        ///< likewise, with attention over all pairs of a sample's tokens
  double wait_seconds = 0;        ///< per step, waiting for the loader
  OwnSeconds own_seconds;         ///< per step
  Traffic sent_bytes;             ///< by this rank per step, by group of ranks
  int64_t memory_bytes = 0;       ///< resident now
  int64_t tensor_peak_bytes = 0;  ///< peak of all tensors so far; 0: not counted
  std::optional<DeviceMemory> gpu_memory;  ///< none on the host
  int64_t bad_items = 0;                   ///< masked since the last logged step
  int64_t skipped_steps = 0;  ///< in which nothing was updated, since the last logged step
};

/// A step whose update the guard skipped, or at which it ended the run.
struct SkipMetrics {
  int64_t step = 0;
  StepReport report;
  int64_t in_a_row = 0;          ///< including this one
  std::vector<int64_t> samples;  ///< of the global batch
};

struct EvalMetrics {
  int64_t step = 0;
  double seconds = 0;
  bool has_loss = true;
  double loss = 0;
  int64_t samples = 0, targets = 0;
  int64_t bad_items = 0;                            ///< masked
  int64_t prompts = 0, generated = 0;               ///< prompts, and tokens generated after them
  double prompt_seconds = 0, generate_seconds = 0;  ///< generate_seconds includes the prompts
  int64_t labelled = 0,
          correct = 0;  ///< samples with a class, and samples whose generated text names it

  double accuracy() const { return labelled > 0 ? static_cast<double>(correct) / labelled : 0; }
};

std::string progress_line(const StepMetrics& metrics);
std::string eval_line(const EvalMetrics& metrics);
std::string generation_line(const EvalMetrics& metrics);

/// Appends lines; throws StorageError when a write fails. With an empty `path` it writes
/// nothing: so on other ranks than the root.
class MetricsFile {
 public:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}
  /// Writes every number as an event, too, tagged kind/key, to a new event file in
  /// `directory`.
  void write_events(const std::string& directory, int64_t first_step);
  void append(const StepMetrics& metrics) const;
  void append(const EvalMetrics& metrics) const;
  void append(const SkipMetrics& metrics) const;
  void append(const ReplayFinding& finding) const;
  void append(const SaveReport& save) const;

 private:
  void append_line(const nlohmann::ordered_json& line) const;

  std::string path_;
  std::unique_ptr<EventFile> events_;  ///< null: none
};

/// Returns the resident memory of this process in bytes.
int64_t resident_bytes();

}  // namespace zea
