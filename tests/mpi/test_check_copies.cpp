// SPDX-License-Identifier: Apache-2.0
// Copies of parameters have the same bits after every step, on each axis and in every precision; a
// flipped bit in one of them is found, and its rank is named.
#include <gtest/gtest.h>

#include "support/axis_layouts.hpp"
#include "support/mpi_main.hpp"
#include "train/check_copies.hpp"

namespace zea::testing::test_check_copies {
namespace {

constexpr AxisLayout kReplicas{"no_shard"};

TinyRunOptions run_of(const AxisLayout& layout, const char* preset) {
  TinyRunOptions run = run_on(layout, preset);
  if (layout.name == std::string(kReplicas.name))
    for (const char* module : {"vision", "llm"}) run.deck.meshes[module].strategy = "no_shard";
  return run;
}

class CheckCopies : public ::testing::Test {
 protected:
  TinyRun make(const AxisLayout& layout, const char* preset) const {
    return {ranks_, make_mpi_collectives, dataset_, run_of(layout, preset)};
  }
  bool is_rank(int rank) const { return ranks_.rank() == rank; }
  /// Returns what the check says.
  static std::string found_in(TinyRun& run) {
    try {
      check_copies(run.engine(), run.control());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::SickNode);
      return error.what();
    }
    return "";
  }
  /// Flips the lowest bit of an element of a parameter.
  static void flip(TinyRun& run, const std::string& name) {
    for (const auto& buffer : run.engine().buffers()) {
      if (!buffer) continue;
      for (const FlatParam& member : buffer->layout().params)
        if (const int64_t at = member.offset - buffer->range().begin;
            run.engine().plan().model.params[member.param].name == name && at >= 0 &&
            at < buffer->master().numel())
          ++static_cast<int32_t*>(buffer->master().mutable_data_ptr())[at];
    }
  }

  const Communicator ranks_ = first_ranks(kAxisRanks);
  const MemoryDataset dataset_ = axis_dataset();
};

TEST_F(CheckCopies, FindsNothingAfterSteps) {
  std::vector<AxisLayout> layouts(std::begin(kAxisLayouts), std::end(kAxisLayouts));
  layouts.push_back(kReplicas);
  for (const char* preset : {"fp64", "fp32", "bf16"})
    for (const AxisLayout& layout : layouts) {
      SCOPED_TRACE(std::string(layout.name) + ", " + preset);
      TinyRun run = make(layout, preset);
      TinyResult result;
      for (int step = 0; step < 3; ++step) {
        run.train(1, result);
        EXPECT_EQ(found_in(run), "");
      }
    }
}

TEST_F(CheckCopies, NamesTheReplicaWithAFlippedBit) {
  TinyRun run = make(kReplicas, "bf16");
  if (is_rank(2)) flip(run, "language_model.model.layers.1.mlp.down_proj.weight");
  const std::string found = found_in(run);
  EXPECT_TRUE(found.starts_with("copies of parameters differ: llm.")) << found;
  EXPECT_NE(found.find(" on rank 2; a bit has flipped"), std::string::npos) << found;
}

TEST_F(CheckCopies, NamesTwoRanksThatHoldAnotherNorm) {
  TinyRun run = make({.name = "tp", .tp = 2}, "fp32");
  if (is_rank(0)) flip(run, "language_model.model.layers.0.input_layernorm.weight");
  EXPECT_TRUE(found_in(run).starts_with(
      "copies of parameters differ: what llm ranks hold in common on ranks 0, 1; a"));
}

/// Two tp ranks hold each of two KV heads.
TEST_F(CheckCopies, NamesTheHoldersOfAKvHead) {
  TinyRunOptions options = run_of({.name = "tp", .tp = 4}, "fp32");
  options.deck.meshes["vision"].tp = 1;
  TinyRun run(ranks_, make_mpi_collectives, dataset_, options);
  EXPECT_EQ(found_in(run), "");
  if (is_rank(3)) flip(run, "language_model.model.layers.1.self_attn.k_proj.weight");
  EXPECT_TRUE(found_in(run).starts_with(
      "copies of parameters differ: what llm ranks hold in common on ranks 2, 3; a"))
      << found_in(run);
}

TEST_F(CheckCopies, NamesTheStagesOfTiedEmbeddings) {
  TinyRun run = make({.name = "pp", .pp = 2}, "fp32");
  if (is_rank(0)) flip(run, "language_model.model.embed_tokens.weight");
  EXPECT_NE(found_in(run).find("what llm ranks hold in common on ranks 0, "), std::string::npos);
}

/// The state is the selection biases of experts, which every rank updates by the loads of all
/// ranks.
TEST_F(CheckCopies, NamesTheRankWithDifferentModelState) {
  for (const char* strategy : {"no_shard", "full_shard"}) {
    TinyRunOptions options =
        stopped_run_options(with_biased_experts(tiny_llava_config({.kv_heads = 2})));
    options.deck.optim.router_bias_update_rate = 0.01;
    for (const char* module : {"vision", "llm"}) options.deck.meshes[module].strategy = strategy;
    TinyRun run(ranks_, make_mpi_collectives, dataset_, options);
    EXPECT_EQ(found_in(run), "");
    if (is_rank(2)) flip(run, "language_model.model.layers.1.mlp.gate.e_score_correction_bias");
    EXPECT_NE(found_in(run).find(".states on rank 2; a bit has flipped"), std::string::npos)
        << strategy << ": " << found_in(run);
  }
}

/// A parameter that one rank alone has cannot be compared.
TEST_F(CheckCopies, ShardsHaveNoCopies) {
  TinyRun run = make({"full_shard"}, "fp32");
  if (is_rank(1)) flip(run, "language_model.model.layers.0.input_layernorm.weight");
  EXPECT_EQ(found_in(run), "");
}

}  // namespace
}  // namespace zea::testing::test_check_copies
