// SPDX-License-Identifier: Apache-2.0
// Generation: the prompts go through the model once, on the layout that trains, and leave the keys
// and values of every decoder block where their tokens are; then one token of each sample at a time
// goes through it.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"
#include "train/sampling.hpp"

namespace zea {

struct GenerateOptions {
  int64_t tokens = 0;  ///< at most, behind each prompt
  Sampling sampling = {};
  std::vector<int64_t> end_tokens = {};      ///< that end a text, and are no part of it
  std::vector<std::string> stop_texts = {};  ///< that end a text in which one stands
  /// Of each token, for stop_texts.
  const std::vector<std::string>* token_bytes = nullptr;
  bool keeps_keys = true;  ///< false: all of each sample again for each token
};

/// A sample to go on from: all of its tokens are the prompt.
struct Prompts {
  const StepPlan& step;  ///< in which there is room for what is generated
  std::vector<LoadedMicrobatch> loaded;
  std::vector<std::vector<bool>> is_asked;  ///< of the samples of each microbatch
};

/// What one rank knows of a generation.
struct Generated {
  /// Behind each sample of each microbatch, without an end token; nothing where nothing was asked.
  std::vector<std::vector<std::vector<int32_t>>> texts;
  double prompt_seconds = 0;
  double seconds = 0;  ///< with the prompts
};

/// Collective over all ranks; those that share a replica get the same.
Generated generate(Engine& engine, Collectives& control, Prompts prompts,
                   const GenerateOptions& options);

}  // namespace zea
