// SPDX-License-Identifier: Apache-2.0
// Pipelines and modules on ranks of their own change nothing: in fp64 every layout of the table
// gives the losses, gradients and weights of one rank, under the collectives in shared memory and
// the strict ones in turn. Layouts of few ranks are tried side by side. ZEA_PIPELINES is a regular
// expression of the names of those that are tried, under both; without it all are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <regex>

#include "support/bf16_bounds.hpp"
#include "support/compared_run.hpp"
#include "support/mpi_main.hpp"
#include "support/pipeline_runs.hpp"
#include "support/recording_collectives.hpp"

namespace zea::testing::test_pipelines {
namespace {

Communicator alone() {
  return world().communicator().split(world().rank(), "alone");
}

const char* asked_pipelines() {
  return std::getenv("ZEA_PIPELINES");
}

bool is_asked_for(const PipelineLayout& layout) {
  const char* asked = asked_pipelines();
  return asked == nullptr || std::regex_search(layout.name(), std::regex(asked));
}

/// The layouts of one placement; those that were asked for under both collectives.
std::vector<Trial> trials_of(const std::string& placement) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < pipelines().size(); ++i) {
    const PipelineLayout& layout = pipelines()[i];
    if (layout.placement != placement || !is_asked_for(layout)) continue;
    for (bool is_strict : {false, true})
      if (asked_pipelines() || is_strict == (i % 2 == 1))
        trials.push_back(make_trial(layout.name(), i, layout.ranks(), is_strict));
  }
  // Layouts with the same number of ranks fill the world together.
  std::stable_sort(trials.begin(), trials.end(),
                   [](const Trial& a, const Trial& b) { return a.ranks < b.ranks; });
  return trials;
}

ComparedResult run_on_one_rank(const Communicator& alone, const PipelineLayout& layout) {
  return run_compared(alone, make_mpi_collectives, dataset_of(layout),
                      run_of(layout, deck_of_one_rank(layout)));
}

class Pipelines : public ::testing::TestWithParam<const char*> {};

TEST_P(Pipelines, EqualOneRank) {
  const Communicator one_rank = alone();
  std::map<size_t, ComparedResult> expected;
  sweep(trials_of(GetParam()), [&](const Communicator& part, const Trial& trial) {
    const PipelineLayout& layout = pipelines()[trial.layout];
    const ComparedResult got =
        run_compared(part, trial.make, dataset_of(layout), run_of(layout, deck_of(layout)));
    if (part.rank() != 0) return;
    if (!expected.contains(trial.layout))
      expected[trial.layout] = run_on_one_rank(one_rank, layout);
    expect_equal(got, expected[trial.layout]);
  });
}

INSTANTIATE_TEST_SUITE_P(Placements, Pipelines,
                         ::testing::Values("shared", "colocated", "disjoint"),
                         [](const auto& info) { return std::string(info.param); });

/// The shard of the buffer that several stages hold, as bits; nothing where a rank has none.
std::vector<double> tied_shard(TinyRun& run) {
  const Plan& plan = run.engine().plan();
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    const auto buffer = static_cast<int>(g);
    if (plan.stages_of_buffer(buffer).size() < 2 || !plan.holds(run.engine().world_rank(), buffer))
      continue;
    const at::Tensor master = run.engine().buffers()[g]->master().contiguous();
    const double* values = master.const_data_ptr<double>();
    std::vector<double> shard(values, values + master.numel());
    shard.insert(shard.begin(), static_cast<double>(run.engine().buffers()[g]->range().begin));
    shard.insert(shard.begin(), plan.piece_rank(run.engine().world_rank(), buffer));
    return shard;
  }
  return {};
}

/// Returns the values of all ranks of `control`, on each.
std::vector<std::vector<double>> gathered(Collectives& control, const std::vector<double>& mine) {
  std::vector<double> sizes(control.size(), 0);
  sizes[control.rank()] = static_cast<double>(mine.size());
  control
      .all_reduce(sizes.data(), static_cast<int64_t>(sizes.size()), DType::Float64, ReduceOp::Sum)
      .wait();
  Counts counts(sizes.begin(), sizes.end());
  std::vector<double> all(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  control.all_gather(mine.data(), all.data(), counts, DType::Float64).wait();
  std::vector<std::vector<double>> of_ranks;
  auto next = all.begin();
  for (int64_t count : counts) {
    of_ranks.emplace_back(next, next + count);
    next += count;
  }
  return of_ranks;
}

TEST(Pipelines, TiedWeightsHaveTheSameBitsAtBothStages) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < pipelines().size(); ++i) {
    const PipelineLayout& layout = pipelines()[i];
    const bool has_stages = layout.llm.pp > 1 && layout.frozen != Frozen::Llm &&
                            layout.frozen != Frozen::EncodersAndLlm;
    if (layout.is_tied() && has_stages && is_asked_for(layout) && i % 3 == 0)
      trials.push_back(make_trial(layout.name(), i, layout.ranks(), false));
  }
  EXPECT_FALSE(trials.empty());
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    const PipelineLayout& layout = pipelines()[trial.layout];
    const MemoryDataset dataset = dataset_of(layout);
    const TinyRunOptions options = run_of(layout, deck_of(layout));
    TinyRun run(part, trial.make, dataset, options);
    const std::vector<double> before = tied_shard(run);
    TinyResult result;
    run.train(options.steps, result);
    const std::vector<double> after = tied_shard(run);
    const auto all = gathered(run.control(), after);
    if (!after.empty()) {
      EXPECT_FALSE(before == after) << "it is trained";
    }
    std::map<std::pair<double, double>, int> holders;
    for (const auto& one : all) {
      if (one.empty()) continue;
      ++holders[{one[0], one[1]}];
      for (const auto& other : all)
        if (!other.empty() && other[0] == one[0] && other[1] == one[1]) {
          EXPECT_TRUE(one == other) << "at two stages";
        }
    }
    EXPECT_FALSE(holders.empty());
    for (const auto& [shard, ranks] : holders) EXPECT_GE(ranks, 2) << "stages that hold it";
  });
}

bool shares_experts_among_replicas(const PipelineModule& llm) {
  return llm.ep > llm.cp * (llm.etp == 1 ? llm.tp : 1);
}

/// A layout of each schedule and placement, and some more. Replicas that share experts do not
/// generate.
std::vector<Trial> some_trials(size_t of_so_many, bool generates = false) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < pipelines().size(); i += of_so_many)
    if (is_asked_for(pipelines()[i]) &&
        (!generates || !shares_experts_among_replicas(pipelines()[i].llm)))
      trials.push_back(make_trial(pipelines()[i].name(), i, pipelines()[i].ranks(), i % 2 == 0));
  return trials;
}

TEST(PipelinesGeneration, EqualsThatOfOneRank) {
  const Communicator one_rank = alone();
  sweep(some_trials(7, true), [&](const Communicator& part, const Trial& trial) {
    const PipelineLayout& layout = pipelines()[trial.layout];
    const MemoryDataset dataset = dataset_of(layout);
    const std::string got =
        predictions_on(part, trial.make, dataset, run_of(layout, deck_of(layout)));
    if (part.rank() != 0) return;
    const std::string expected =
        predictions_on(one_rank, make_mpi_collectives, dataset,
                       run_of(layout, deck_of_one_rank(layout)), kWithoutCache);
    EXPECT_EQ(got, expected);
    EXPECT_EQ(std::count(got.begin(), got.end(), '\n'), dataset_of(layout).index().size());
  });
}

TEST(PipelinesInBf16, RoundNoMoreThanTwiceWhatOneRankRounds) {
  const Communicator one_rank = alone();
  sweep(some_trials(12), [&](const Communicator& part, const Trial& trial) {
    const PipelineLayout& layout = pipelines()[trial.layout];
    if (layout.twist == Twist::Skewed) return;  // rounding chooses among experts of equal scores
    const MemoryDataset dataset = dataset_of(layout);
    const auto in = [](const char* preset, Options deck) {
      deck.precision.preset = preset;
      deck.optim.lr = 1e-3;  // small steps: roundings, not what training makes of them
      return deck;
    };
    const TinyResult got =
        run_tiny(part, trial.make, dataset, run_of(layout, in("bf16", deck_of(layout))));
    if (part.rank() != 0) return;
    const auto on_one_rank = [&](const char* preset) {
      return run_tiny(one_rank, make_mpi_collectives, dataset,
                      run_of(layout, in(preset, deck_of_one_rank(layout))));
    };
    const TinyResult exact = on_one_rank("fp64"), expected = on_one_rank("bf16");
    expect_near_in_bf16(got.losses, expected.losses, exact.losses);
    expect_near_in_bf16(got.grad_norms, expected.grad_norms, exact.grad_norms);
  });
}

/// The first layout whose name matches.
const PipelineLayout& layout_like(const std::string& pattern) {
  for (const PipelineLayout& layout : pipelines())
    if (std::regex_search(layout.name(), std::regex(pattern))) return layout;
  throw std::invalid_argument(pattern);
}

const char* const kDisjointTied = "^disjoint, 1f1b: llm pp 2, full_shard.*all trains, tied";

TEST(PipelinesTeeth, AnotherDataSetIsSeen) {
  const PipelineLayout& layout = layout_like(kDisjointTied);
  const Communicator part = first_ranks(layout.ranks()), one_rank = alone();
  if (part.size() == 0) return;
  const ComparedResult got = run_compared(part, make_host_collectives, dataset_of(layout, 1),
                                          run_of(layout, deck_of(layout)));
  EXPECT_GT(difference(got, run_on_one_rank(one_rank, layout)), 1e-6);
}

/// One rank's part of everything is wrong, each in turn: its pieces are used by all.
TEST(PipelinesTeeth, TheWeightsOfEveryRankAreSeen) {
  const PipelineLayout& layout = layout_like(kDisjointTied);
  const Communicator part = first_ranks(layout.ranks()), one_rank = alone();
  if (part.size() == 0) return;
  const ComparedResult right = run_on_one_rank(one_rank, layout);
  for (int wrong = 0; wrong < layout.ranks(); ++wrong) {
    TinyRunOptions options = run_of(layout, deck_of(layout));
    options.steps = 1;
    if (part.rank() == wrong) options.weights_seed = 2;
    const ComparedResult got =
        run_compared(part, make_host_collectives, dataset_of(layout), options);
    EXPECT_GT(std::abs(got.losses[0] - right.losses[0]), 1e-6) << wrong;
  }
}

/// The encoder's rank sends features, and the language model's rank their gradients; neither has
/// anything to gather or to sum except the numbers that all ranks exchange.
TEST(PipelinesTeeth, ModulesOnRanksOfTheirOwnSendToEachOther) {
  const PipelineLayout& layout = layout_like("^disjoint, 1f1b: llm pp 1, full_shard");
  const Communicator part = first_ranks(layout.ranks());
  if (part.size() == 0) return;
  Record record;
  run_compared(part, recording(record), dataset_of(layout), run_of(layout, deck_of(layout)));
  const Record sends = calls_of(record, "send");
  EXPECT_FALSE(sends.empty());
  for (const RecordedCall& send : sends) EXPECT_EQ(send.ranks, 2);
  EXPECT_TRUE(calls_of(record, "all_gather").empty());
  EXPECT_TRUE(calls_of(record, "reduce_scatter").empty());
  EXPECT_TRUE(calls_of(record, "all_to_all").empty());
}

}  // namespace
}  // namespace zea::testing::test_pipelines
