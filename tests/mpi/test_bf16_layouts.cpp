// SPDX-License-Identifier: Apache-2.0
// bf16 on several ranks is as far from fp64 as bf16 on one.
#include <gtest/gtest.h>

#include <cmath>

#include "support/axis_layouts.hpp"
#include "support/bf16_bounds.hpp"
#include "support/compared_run.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_bf16_layouts {
namespace {

/// The bound for a tensor: chance moves its few elements more than those of a module.
double allowed_of_tensor(double error_of_one_rank, double size) {
  return 2 * allowed_in_bf16(error_of_one_rank, size);
}

ComparedResult run_in(const char* preset, const Communicator& ranks, const AxisLayout& layout) {
  const MemoryDataset dataset = axis_dataset();
  TinyRunOptions run = run_on(layout, preset);
  run.steps = 4;
  run.deck.optim.clip_norm = 0;  // gradients as they are
  return run_compared(ranks, make_mpi_collectives, dataset, run);
}

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// "language_model", "multi_modal_projector", "vision_tower".
std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.find('.'));
}

/// Every tensor, and all of a module together.
void expect_near(const Tensors& got, const Tensors& one_rank, const Tensors& exact) {
  struct Squares {
    double got = 0, one_rank = 0, size = 0;
  };
  std::map<std::string, Squares> modules;
  for (const auto& [name, values] : exact) {
    const Squares squares{squared_distance(got.at(name), values),
                          squared_distance(one_rank.at(name), values),
                          squared_distance(std::vector<double>(values.size()), values)};
    Squares& module = modules[module_of(name)];
    module.got += squares.got;
    module.one_rank += squares.one_rank;
    module.size += squares.size;
    // The gradient of a key's bias is zero, because the bias moves all scores of a row alike.
    if (squares.size < 1e-24) continue;
    EXPECT_LE(std::sqrt(squares.got),
              allowed_of_tensor(std::sqrt(squares.one_rank), std::sqrt(squares.size)))
        << name;
  }
  EXPECT_EQ(modules.size(), 3u);
  for (const auto& [name, squares] : modules)
    EXPECT_LE(std::sqrt(squares.got),
              allowed_in_bf16(std::sqrt(squares.one_rank), std::sqrt(squares.size)))
        << name;
}

TEST(Bf16Layouts, RoundNoMoreThanTwiceWhatOneRankRounds) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const Communicator alone = ranks.split(ranks.rank(), "alone");
  const ComparedResult exact = run_in("fp64", alone, {"one rank"});
  const ComparedResult one_rank = run_in("bf16", alone, {"one rank"});
  EXPECT_GT(largest_distance(one_rank.losses, exact.losses), 1e-6) << "bf16 rounds";
  for (const AxisLayout& layout : kAxisLayouts) {
    SCOPED_TRACE(layout.name);
    const ComparedResult got = run_in("bf16", ranks, layout);
    if (ranks.rank() != 0) continue;
    expect_near_in_bf16(got.losses, one_rank.losses, exact.losses);
    expect_near_in_bf16(got.grad_norms, one_rank.grad_norms, exact.grad_norms);
    expect_near(got.first_moment, one_rank.first_moment, exact.first_moment);
  }
}

/// Returns the share of elements that bf16 cannot hold.
double share_beyond_bf16(const Tensors& tensors) {
  int64_t beyond = 0, all = 0;
  for (const auto& [name, values] : tensors)
    for (const double value : values) {
      ++all;
      beyond += static_cast<double>(c10::BFloat16(static_cast<float>(value))) != value;
    }
  return static_cast<double>(beyond) / static_cast<double>(all);
}

TEST(Bf16Layouts, MastersAndMomentsAreInFp32) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const MemoryDataset dataset = axis_dataset();
  TinyRun run(ranks, make_mpi_collectives, dataset, run_on({"full_shard"}, "bf16"));
  TinyResult result;
  run.train(2, result);
  EXPECT_GT(share_beyond_bf16(run.weights()), 0.8);
  for (const char* state : {"exp_avg", "exp_avg_sq"})
    EXPECT_GT(share_beyond_bf16(run.state(state)), 0.8) << state;
}

/// Without packing the bf16 rows of a sample have the same bits on any rank.
TEST(Bf16Layouts, GradientsAreSummedInFp32) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const Communicator alone = ranks.split(ranks.rank(), "alone");
  const MemoryDataset dataset = axis_dataset();
  const auto gradients = [&](const Communicator& on, const char* strategy) {
    TinyRunOptions options = run_on({"ranks"}, "bf16");
    for (const char* module : {"vision", "llm"}) options.deck.meshes[module].strategy = strategy;
    options.deck.data.packing = false;
    options.deck.schedule.global_batch = std::ssize(dataset.index());
    options.deck.optim.clip_norm = 0;
    TinyRun run(on, make_mpi_collectives, dataset, options);
    TinyResult result;
    run.train(1, result);
    return run.state("exp_avg");
  };
  const Tensors expected = gradients(alone, "no_shard");
  for (const char* strategy : {"no_shard", "full_shard"}) {
    SCOPED_TRACE(strategy);
    const Tensors got = gradients(ranks, strategy);
    for (const auto& [name, values] : expected)
      EXPECT_LE(squared_distance(got.at(name), values),
                1e-10 * squared_distance(std::vector<double>(values.size()), values))
          << name;
  }
}

}  // namespace
}  // namespace zea::testing::test_bf16_layouts
