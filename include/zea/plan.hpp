// SPDX-License-Identifier: Apache-2.0
// The plan of a run, as `zea -n` makes it: text and numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zea/error.hpp"

namespace zea {

struct PlanRequest {
  std::string deck = {};  ///< path of a deck (TOML)
  /// A run directory or a checkpoint to resume, with its own deck if `deck` is empty.
  std::string checkpoint = {};
  std::vector<std::string> overrides = {};  ///< "section.key=value", as on the command line
  int ranks = 1;
  int ranks_per_node = 0;  ///< 0: all on one node
};

/// Memory of one rank in bytes.
struct RankMemory {
  int64_t parameters = 0;        ///< owned master weights, compute copies and frozen parameters
  int64_t optimizer_states = 0;  ///< owned
  int64_t gradients = 0;         ///< owned
  int64_t gathered = 0;          ///< gathered parameters, and gradients that are not yet reduced
  int64_t activations = 0;       ///< their peak in a step
  int64_t keys = 0;              ///< the KV cache of generation
  int64_t graphs = 0;            ///< what run.cuda_graphs keeps between steps, at most
  int64_t libraries = 0;         ///< of CUDA's context and NCCL's communicators, about
  int64_t offloaded = 0;         ///< host memory of modules with cpu_offload; not in total()

  /// All of the computing device, which mesh.rank_memory_mib limits.
  int64_t total() const {
    return parameters + optimizer_states + gradients + gathered + activations + keys + graphs +
           libraries;
  }
};

/// Ranks that run the same modules or pipeline stages.
struct RankGroup {
  std::string name;    ///< modules, and stages in a pipeline
  int first_rank = 0;  ///< the first rank of the group
  RankMemory memory;   ///< of the rank that needs most, in steps of full microbatches
  /// Bytes that a rank sends in a step, by communication group: "llm.tp", "replica".
  std::map<std::string, int64_t> sent = {};
};

struct PlannedRun {
  std::string text;  ///< the output of `zea -n` without a data set
  int ranks = 0;
  int replicas = 0;  ///< copies of the model that train on different samples
  std::vector<RankGroup> groups;
  double model_flops = 0;          ///< of a step
  double samples = 0, tokens = 0;  ///< of a step
  std::vector<std::string> notes;  ///< such as keys of the deck without effect
};

/// Plans a run. Data sets are not opened: bytes sent and FLOPs are those of a step of assumed
/// samples. Throws DeckError or PlanError with every fault, one per line, and WeightsError.
PlannedRun plan_run(const PlanRequest& request);

}  // namespace zea
