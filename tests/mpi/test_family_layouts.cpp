// SPDX-License-Identifier: Apache-2.0
// Every family on a grid of all its modules, and in stages with encoders on separate ranks, trains
// in fp64 as on one rank. The grids and pipelines of few families: test_grids, test_pipelines.
#include <gtest/gtest.h>

#include <set>

#include "support/compared_run.hpp"
#include "support/family_layouts.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_family_layouts {
namespace {

void expect_equals_one_rank(const TinyRunOptions& options, const TinyRunOptions& on_one_rank,
                            const MemoryDataset& dataset) {
  const Communicator& world = testing::world().communicator();
  ASSERT_EQ(world.size(), kFamilyRanks);
  const ComparedResult got = run_compared(world, make_host_collectives, dataset, options);

  const Communicator alone = world.split(world.rank(), "alone");
  if (world.rank() == 0)
    expect_equal(got, run_compared(alone, make_mpi_collectives, dataset, on_one_rank));
}

class FamilyLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(FamilyLayouts, EqualOneRank) {
  const FamilyLayout& layout = family_layouts()[GetParam()];
  expect_equals_one_rank(layout.run(), layout.run_on_one_rank(), layout.dataset());
}

/// Adapts every linear of every module.
TinyRunOptions adapted(TinyRunOptions run) {
  run.deck.llm.lora = {.targets = {"*"}, .rank = 3};
  for (const EncoderSpec& encoder : make_model_spec(run.config_json).encoders) {
    run.deck.encoders[encoder.name].train = true;
    run.deck.encoders[encoder.name].lora = run.deck.llm.lora;
  }
  return run;
}

/// Experts, conformers, linears of patches and of per-layer inputs, keys that blocks share.
TEST(AdaptersOfGemma4, EqualOneRank) {
  const std::set<std::string> kModels{
      "gemma4_text with experts", "gemma4 with images, shared keys and inputs of each layer",
      "gemma4 with audio", "gemma4 with audio, bounds and windows both ways"};
  size_t compared = 0;
  for (const FamilyLayout& layout : family_layouts()) {
    if (!kModels.contains(layout.model->name)) continue;
    SCOPED_TRACE(layout.name());
    ++compared;
    expect_equals_one_rank(adapted(layout.run()), adapted(layout.run_on_one_rank()),
                           layout.dataset());
  }
  EXPECT_EQ(compared, 2 * kModels.size());
}

std::string name_of(const ::testing::TestParamInfo<size_t>& info) {
  std::string name = family_layouts()[info.param].name();
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyLayouts, ::testing::Range<size_t>(0, family_layouts().size()),
                         name_of);

}  // namespace
}  // namespace zea::testing::test_family_layouts
