// SPDX-License-Identifier: Apache-2.0
// Evaluation runs a forward-only schedule of the same units over a held-out data set. It
// computes the loss over its targets, and, if asked, generates text after each sample's prompt
// and finds the class that the text names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/log.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"
#include "train/generate.hpp"
#include "train/metrics.hpp"

namespace zea {

struct Evaluation {
  EvalMetrics metrics;  ///< the caller sets step and seconds
  /// On the root rank, a line per prediction in the order of samples; empty without
  /// generation.
  std::string predictions_jsonl = {};
  /// On the root rank, the lines of each rank: one per masked item.
  std::vector<std::string> bad_items = {};
  bool is_whole = true;  ///< false: it was left before the last sample, as asked
};

struct EvaluateOptions {
  int64_t samples = 0;          ///< 0: all
  int64_t generate_tokens = 0;  ///< 0: only the loss
  /// False: only generation, also for samples without an answer, which are prompts as a
  /// whole.
  bool has_loss = true;
  Sampling sampling = {};
  std::vector<int64_t> stop_tokens = {};  ///< none: the model's end tokens
  std::vector<std::string> stop_texts = {};
  bool uses_kv_cache = true;  ///< see GenerateOptions
  /// Called on every rank before each global batch. If it returns true on any rank, the evaluation
  /// ends.
  std::function<bool()> is_exit_requested = {};
};

/// Collective over all ranks; throws alike on all of them.
Evaluation evaluate(Engine& engine, Collectives& control, const Dataset& dataset,
                    const LoaderOptions& loading, const EvaluateOptions& options);

/// The destination of an evaluation's results: a log line, a line of metrics.jsonl, and
/// predictions.jsonl in `directory`.
struct EvaluationOutput {
  int64_t step = 0;
  double seconds = 0;
  std::string directory;
  bool goes_on = false;  ///< true: a failed write is a warning; false: a StorageError
  std::function<bool()> is_exit_requested = {};  ///< see EvaluateOptions
  bool counts_part =
      false;  ///< whether a part is reported if the rest is left; false: only a warning
};

/// Evaluates as the deck's [eval] says and reports it. Returns whether it was completed.
/// Collective.
bool evaluate_and_report(Engine& engine, Collectives& control, const Dataset& dataset,
                         const LoaderOptions& loading, Log& log, const MetricsFile& metrics,
                         const EvaluationOutput& output);

}  // namespace zea
