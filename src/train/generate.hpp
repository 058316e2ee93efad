// SPDX-License-Identifier: Apache-2.0
// Generation: the prompts run through the model once, on the layout that trains, and fill a KV
// cache on the ranks of their tokens; then each sample is extended by one token at a time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"

namespace zea {

struct Sampling {
  double temperature = 0;  ///< divides logits; 0: the likeliest token
  double top_p = 1;        ///< probability of the nucleus
  uint64_t seed = 0;
};

/// Returns a random number in [0, 1) for a token of a sample. It depends only on seed, sample and
/// position, so that every layout draws the same.
double drawn_number(uint64_t seed, int64_t sample, int64_t place);

/// Samples a token by nucleus sampling (arXiv:1904.09751) from `logits` (vocabulary) on the host:
/// the nucleus holds the fewest tokens whose probabilities sum to `top_p`. `drawn` of [0, 1)
/// chooses one.
int64_t sampled_token(const at::Tensor& logits, const Sampling& sampling, double drawn);

struct GenerateOptions {
  int64_t tokens = 0;  ///< at most, after each prompt
  Sampling sampling = {};
  std::vector<int64_t> end_tokens = {};      ///< end a text, and are no part of it
  std::vector<std::string> stop_texts = {};  ///< end a text that contains one
  /// The bytes of each token, for stop_texts.
  const std::vector<std::string>* token_bytes = nullptr;
  bool uses_kv_cache = true;  ///< false: each token recomputes the whole sample
};

/// Samples to continue: all of their tokens are the prompt.
struct Prompts {
  const StepPlan& step;  ///< has room for the generated tokens
  std::vector<LoadedMicrobatch> loaded;
  std::vector<std::vector<bool>> is_asked;  ///< of the samples of each microbatch
};

/// One rank's part of a generation.
struct Generated {
  /// The tokens generated after each sample of each microbatch, without an end token; empty if none
  /// were requested.
  std::vector<std::vector<std::vector<int32_t>>> texts;
  double prompt_seconds = 0;
  double seconds = 0;  ///< includes the prompts
};

/// Collective over all ranks; ranks of a replica get the same.
Generated generate(Engine& engine, Collectives& control, Prompts prompts,
                   const GenerateOptions& options);

}  // namespace zea
