// SPDX-License-Identifier: Apache-2.0
// Evaluation: a forward-only schedule of the same units over a held-out data set. The loss over its
// targets; and, when asked for, what the model says after each sample's prompt, with the class that
// the generated text names.
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
  EvalMetrics metrics;  ///< step and seconds are the caller's
  /// On the root rank, in the order of samples; empty without generation.
  std::string predictions_jsonl = {};
  /// For each rank a line for every item that was masked.
  std::vector<std::string> bad_items = {};
  bool is_whole = true;  ///< false: left before the last sample, as was asked for
};

struct EvaluateOptions {
  int64_t samples = 0;          ///< 0: all
  int64_t generate_tokens = 0;  ///< 0: only the loss
  /// False: only generation, also of samples without an answer, all of which are their prompts.
  bool has_loss = true;
  Sampling sampling = {};
  std::vector<int64_t> stop_tokens = {};  ///< none: those that the model says
  std::vector<std::string> stop_texts = {};
  bool keeps_keys = true;  ///< as GenerateOptions
  /// Asked on every rank before each global batch: whether to leave the rest. One is enough.
  std::function<bool()> is_leave_asked = {};
};

/// Collective over all ranks; throws alike on all of them.
Evaluation evaluate(Engine& engine, Collectives& control, const Dataset& dataset,
                    const LoaderOptions& loading, const EvaluateOptions& options);

/// Where an evaluation's results go: a log line, a line of metrics.jsonl, and predictions.jsonl in
/// `directory`.
struct EvaluationOutput {
  int64_t step = 0;
  double seconds = 0;
  std::string directory;
  bool goes_on = false;  ///< what cannot be written is a warning; false: a StorageError
  std::function<bool()> is_leave_asked = {};  ///< as EvaluateOptions
  bool counts_part = false;  ///< of one that is left, what there is; false: nothing but a warning
};

/// Evaluates as the deck's [eval] says and reports it. Returns whether it was not left. Collective.
bool evaluate_and_report(Engine& engine, Collectives& control, const Dataset& dataset,
                         const LoaderOptions& loading, Log& log, const MetricsFile& metrics,
                         const EvaluationOutput& output);

}  // namespace zea
