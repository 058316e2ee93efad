// SPDX-License-Identifier: Apache-2.0
// The plan of a run before anything runs: what `zea -n` prints, as text and numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zea/error.hpp"

namespace zea {

struct PlanRequest {
  std::string deck = {};  ///< path of a deck (TOML)
  /// A run directory or a checkpoint to resume, under its own deck if `deck` is empty.
  std::string checkpoint = {};
  std::vector<std::string> overrides = {};  ///< "section.key=value", as on the command line
  int ranks = 1;
  int ranks_per_node = 0;  ///< 0: all on one node
};

/// Bytes of tensors of one rank.
struct RankMemory {
  int64_t parameters = 0;        ///< owned masters and compute copies, and frozen parameters
  int64_t optimizer_states = 0;  ///< owned
  int64_t gradients = 0;         ///< owned
  int64_t gathered = 0;          ///< gathered parameters and gradients that are not reduced yet
  int64_t activations = 0;       ///< the most during a step
  int64_t keys = 0;              ///< keys and values that generation keeps
  int64_t offloaded = 0;         ///< in host memory, of modules with cpu_offload; not in total()

  int64_t total() const {
    return parameters + optimizer_states + gradients + gathered + activations + keys;
  }
};

/// Ranks that run the same modules or pipeline stages.
struct RankGroup {
  std::string name;    ///< modules, and stages in a pipeline
  int first_rank = 0;  ///< the numbers below are this rank's, or those of the largest in the group
  RankMemory memory;   ///< of steps whose microbatches are as full as the deck allows
  /// Bytes that the rank sends in a step, by group of ranks: "llm.tp", "replica".
  std::map<std::string, int64_t> sent = {};
};

struct PlannedRun {
  std::string text;  ///< what `zea -n` prints where no data set is there
  int ranks = 0;
  int replicas = 0;  ///< copies of the model that train on different samples
  std::vector<RankGroup> groups;
  double model_flops = 0;          ///< of a step
  double samples = 0, tokens = 0;  ///< of a step
  std::vector<std::string> notes;  ///< on keys of the deck without effect
};

/// Plans a run. Bytes sent and FLOPs are those of a step of made-up samples: data sets are not
/// opened. Throws DeckError or PlanError with every fault, one per line, and WeightsError.
PlannedRun plan_run(const PlanRequest& request);

}  // namespace zea
