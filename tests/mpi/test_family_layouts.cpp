// SPDX-License-Identifier: Apache-2.0
// Every family on a grid of all its modules, and in stages with encoders on separate ranks, trains
// in fp64 as on one rank. The grids and pipelines of few families: test_grids, test_pipelines.
#include <gtest/gtest.h>

#include "support/compared_run.hpp"
#include "support/family_layouts.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_family_layouts {
namespace {

class FamilyLayouts : public ::testing::TestWithParam<size_t> {};

TEST_P(FamilyLayouts, EqualOneRank) {
  const FamilyLayout& layout = family_layouts()[GetParam()];
  const Communicator& world = testing::world().communicator();
  ASSERT_EQ(world.size(), kFamilyRanks);
  const TinyRunOptions options = layout.run();
  // Alone in their samples, so that LLaVA-OneVision cuts them.
  const MemoryDataset dataset =
      make_tiny_dataset(plan_of(options, kFamilyRanks).model, 10, {1, 0, 1}, 5);

  const ComparedResult got = run_compared(world, make_host_collectives, dataset, options);

  const Communicator alone = world.split(world.rank(), "alone");
  if (world.rank() == 0)
    expect_equal(got, run_compared(alone, make_mpi_collectives, dataset, layout.run_on_one_rank()));
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
