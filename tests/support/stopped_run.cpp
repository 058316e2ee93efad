// SPDX-License-Identifier: Apache-2.0
#include "support/stopped_run.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"

namespace zea::testing {
namespace {

/// Elements of a shard outside every parameter stay zero, including vocabulary padding.
void expect_zero_padding(TinyRun& run) {
  const Plan& plan = run.engine().plan();
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (!plan.holds(run.engine().world_rank(), static_cast<int>(g))) continue;
    const ShardedBuffer& buffer = *run.engine().buffers()[g];
    if (!buffer.trainable()) continue;
    const at::Tensor padding = at::ones_like(buffer.master());
    const int piece_rank = plan.piece_rank(run.engine().world_rank(), static_cast<int>(g));
    for (const FlatPart& part : parts_in_range(plan.buffers[g], buffer.range()))
      for (const PieceBox& box :
           boxes_of_piece(plan.model.params[part.param], plan.cuts[part.param], piece_rank,
                          part.param_begin, part.param_begin + part.elements))
        padding
            .narrow(0, part.flat_begin - buffer.range().begin + box.begin - part.param_begin,
                    box.extent.elements())
            .zero_();
    std::vector<at::Tensor> all{buffer.master()};
    for (const StateSpec& state : plan.optimizer.states)
      if (state.of == StateOf::All) all.push_back(run.engine().state(buffer, state.name));
    for (const at::Tensor& values : all)
      EXPECT_EQ((values * padding).abs().max().item<double>(), 0) << buffer.layout().name;
  }
}

}  // namespace

size_t resume_stride() {
  const char* asked = std::getenv("ZEA_RESUME_STRIDE");
  return asked ? std::max<size_t>(1, std::stoul(asked)) : 5;
}

TinyRunOptions stopped_run_options(const std::string& config_json) {
  TinyRunOptions run;
  run.config_json = config_json;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 64;
  run.deck.optim.lr = 1e-2;
  run.deck.optim.warmup_steps = 2;
  run.deck.optim.weight_decay = 0.1;
  run.deck.optim.clip_norm = 0.5;
  run.deck.schedule = {.steps = kStepsBeforeStop + kStepsAfterStop, .global_batch = 7};
  return run;
}

StoppedRun run_through(const Communicator& ranks, const MakeCollectives& make,
                       const Dataset& dataset, const TinyRunOptions& options,
                       const std::string& directory) {
  TinyRun run(ranks, make, dataset, options);
  TinyResult before, after;
  run.train(kStepsBeforeStop, before);
  StoppedRun stopped;
  stopped.checkpoint = write_checkpoint(
      run.engine(), run.control(),
      {.directory = directory, .run_id = "run-1", .position = run.position(), .deck = "[run]\n"});
  stopped.weights = run.weights();
  stopped.states = run.states();
  run.train(kStepsAfterStop, after);
  stopped.losses_after = after.losses;
  stopped.final_weights = run.weights();
  stopped.final_states = run.states();
  return stopped;
}

void expect_resumes(const Communicator& ranks, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options, const StoppedRun& expected, double difference) {
  TinyRun run(ranks, make, dataset, options);
  run.position() = read_checkpoint(run.engine(), run.control(), *open_state(expected.checkpoint));
  const Tensors weights = run.weights();
  const std::map<std::string, Tensors> states = run.states();
  TinyResult after;
  run.train(kStepsAfterStop, after);
  const Tensors final_weights = run.weights();
  const std::map<std::string, Tensors> final_states = run.states();
  expect_zero_padding(run);
  if (ranks.rank() != 0) return;
  EXPECT_EQ(max_difference(weights, expected.weights), 0);
  ASSERT_EQ(states.size(), expected.states.size());
  for (const auto& [name, values] : expected.states)
    EXPECT_EQ(max_difference(states.at(name), values), 0) << name;
  EXPECT_LE(max_difference(final_weights, expected.final_weights), difference);
  for (const auto& [name, values] : expected.final_states)
    EXPECT_LE(max_difference(final_states.at(name), values), difference) << name;
  ASSERT_EQ(after.losses.size(), expected.losses_after.size());
  for (size_t step = 0; step < after.losses.size(); ++step)
    EXPECT_NEAR(after.losses[step], expected.losses_after[step], difference) << "step " << step;
}

}  // namespace zea::testing
