// SPDX-License-Identifier: Apache-2.0
#include "support/compared_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "support/mpi_main.hpp"
#include "support/strict_collectives.hpp"
#include "train/training_data.hpp"

namespace zea::testing {
namespace {

/// The same samples, with a text for each token.
MemoryDataset named_tokens(const MemoryDataset& plain) {
  std::vector<Sample> samples;
  for (size_t i = 0; i < plain.index().size(); ++i)
    samples.push_back(plain.read(static_cast<int64_t>(i)));
  std::vector<std::string> names;
  for (int token = 0; token < 64; ++token) names.push_back(std::to_string(token) + " ");
  return MemoryDataset(std::move(samples), plain.kinds(), {}, names, "named");
}

/// Trials that run at the same time, on ranks of their own.
std::vector<std::vector<Trial>> waves_of(const std::vector<Trial>& trials, int ranks) {
  std::vector<std::vector<Trial>> waves;
  int used = ranks;
  for (Trial trial : trials) {
    if (used + trial.ranks > ranks) {
      waves.emplace_back();
      used = 0;
    }
    trial.first_rank = used;
    used += trial.ranks;
    waves.back().push_back(trial);
  }
  return waves;
}

}  // namespace

ComparedResult run_compared(const Communicator& ranks, const MakeCollectives& make,
                            const Dataset& dataset, const TinyRunOptions& options) {
  TinyRun run(ranks, make, dataset, options);
  ComparedResult result;
  run.train(1, result);
  const bool is_muon = options.deck.optim.kind == OptimizerKind::Muon;
  result.first_moment = run.state(is_muon ? "momentum_buffer" : "exp_avg");
  run.train(options.steps - 1, result);
  result.weights = run.weights();
  result.eval_loss = run.evaluate();
  return result;
}

double difference(const ComparedResult& a, const ComparedResult& b) {
  double largest = std::abs(a.eval_loss - b.eval_loss);
  for (size_t step = 0; step < b.losses.size(); ++step)
    largest = std::max({largest, std::abs(a.losses[step] - b.losses[step]),
                        std::abs(a.grad_norms[step] - b.grad_norms[step])});
  return std::max({largest, max_difference(a.first_moment, b.first_moment),
                   max_difference(a.weights, b.weights)});
}

void expect_equal(const ComparedResult& got, const ComparedResult& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], kSameTraining) << "step " << step;
    // Norms of hundreds have that many times the rounding.
    const double norm = expected.grad_norms[step];
    EXPECT_NEAR(got.grad_norms[step], norm, kSameTraining * std::max(1.0, norm)) << "step " << step;
    EXPECT_GT(norm, 0);
  }
  for (const auto& [name, values] : expected.first_moment) {
    const Tensors one{{name, values}}, other{{name, got.first_moment.at(name)}};
    EXPECT_LE(max_difference(other, one), kSameTraining) << "gradient of " << name;
  }
  EXPECT_LE(max_difference(got.weights, expected.weights), kSameTraining);
  EXPECT_NEAR(got.eval_loss, expected.eval_loss, kSameTraining);
}

std::string predictions_on(const Communicator& ranks, const MakeCollectives& make,
                           const MemoryDataset& plain, const TinyRunOptions& options,
                           const EvaluateOptions& evaluation) {
  const MemoryDataset dataset = named_tokens(plain);
  TinyRun run(ranks, make, dataset, options);
  const LoaderOptions loading = loading_on(run.engine().plan(), run.engine().world_rank());
  return evaluate(run.engine(), run.control(), dataset, loading, evaluation).predictions_jsonl;
}

Trial make_trial(const std::string& name, size_t layout, int ranks, bool is_strict) {
  if (is_strict) return {name + "; strict collectives", layout, ranks, make_strict_collectives};
  return {name + "; host collectives", layout, ranks, make_host_collectives};
}

void sweep(const std::vector<Trial>& trials,
           const std::function<void(const Communicator&, const Trial&)>& run) {
  const Communicator all = world().communicator();
  const std::unique_ptr<Collectives> control = make_mpi_collectives(all);
  for (const auto& wave : waves_of(trials, all.size())) {
    const Trial* mine = nullptr;
    for (const Trial& trial : wave)
      if (all.rank() >= trial.first_rank && all.rank() < trial.first_rank + trial.ranks)
        mine = &trial;
    control->barrier();  // sleeps until all are here, where a split would take turns with them
    const Communicator part = all.split(mine ? mine->first_rank : Communicator::kNoColor, "trial");
    if (!mine) continue;
    SCOPED_TRACE(mine->name);
    try {
      run(part, *mine);
    } catch (const std::exception& error) {
      throw std::runtime_error(mine->name + ": " + error.what());
    }
  }
}

}  // namespace zea::testing
