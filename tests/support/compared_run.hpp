// SPDX-License-Identifier: Apache-2.0
// Runs of many layouts against the results of one rank: the compared values, and the concurrent
// trial of layouts of few ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/tiny_run.hpp"

namespace zea::testing {

/// fp64 on another layout is the same but for rounding.
inline constexpr double kSameTraining = 1e-10;

struct ComparedResult : TinyResult {
  Tensors first_moment;  ///< after one step: (1 - beta1) x its gradient
};

/// All steps of `options`, then the loss over the whole data set. Collective over `ranks`.
ComparedResult run_compared(const Communicator& ranks, const MakeCollectives& make,
                            const Dataset& dataset, const TinyRunOptions& options);

/// The largest difference of anything that is compared.
double difference(const ComparedResult& a, const ComparedResult& b);

/// Loss and norm of each step, every gradient of the first, every weight after the last.
void expect_equal(const ComparedResult& got, const ComparedResult& expected);

/// Returns the untrained model's answers to the samples of `plain` (each token a text of its own),
/// in lines of JSON, on rank 0. Collective over `ranks`.
std::string predictions_on(const Communicator& ranks, const MakeCollectives& make,
                           const MemoryDataset& plain, const TinyRunOptions& options,
                           const EvaluateOptions& evaluation = {.generate_tokens = 4});

/// Four tokens by the whole forward for each of them.
inline const EvaluateOptions kWithoutCache{.generate_tokens = 4, .uses_kv_cache = false};
/// Four tokens that are drawn, in the one way and the other.
inline const EvaluateOptions kDrawn{.generate_tokens = 4,
                                    .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 7}};
inline const EvaluateOptions kDrawnWithoutCache{
    .generate_tokens = 4,
    .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 7},
    .uses_kv_cache = false};

/// A layout on some ranks.
struct Trial {
  std::string name;
  size_t layout;  ///< which of the caller's
  int ranks;
  MakeCollectives make;
  int first_rank = 0;
};

/// Appends "host collectives" or "strict collectives" to `name`.
Trial make_trial(const std::string& name, size_t layout, int ranks, bool is_strict);

/// Returns a trial for each of `layouts`, which have members `name` and `ranks`; every second trial
/// has strict collectives.
template <class Layouts>
std::vector<Trial> make_trials(const Layouts& layouts) {
  std::vector<Trial> trials;
  for (const auto& layout : layouts)
    trials.push_back(make_trial(layout.name, trials.size(), layout.ranks, trials.size() % 2 == 1));
  return trials;
}

/// Gives each trial its ranks, several at a time. Collective over the world.
void sweep(const std::vector<Trial>& trials,
           const std::function<void(const Communicator&, const Trial&)>& run);

}  // namespace zea::testing
