// SPDX-License-Identifier: Apache-2.0
// A run that is stopped and goes on at the same layout has the bits of one that was never stopped:
// weights, optimizer states and losses, in fp32 and bf16, whatever way the model is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "support/axis_layouts.hpp"
#include "support/family_layouts.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_resume_bits {
namespace {

constexpr double kSameBits = 0;

class ResumeBits : public ::testing::TestWithParam<const char*> {
 protected:
  const SharedDirectory shared_{world().communicator()};
};

TEST_P(ResumeBits, AreThoseOfARunThatNeverStopped) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const MemoryDataset dataset = axis_dataset();
  for (const AxisLayout& layout : kAxisLayouts) {
    SCOPED_TRACE(layout.name);
    const TinyRunOptions options = run_on(layout, GetParam());
    const StoppedRun expected =
        run_through(ranks, make_mpi_collectives, dataset, options, shared_ / layout.name);
    expect_resumes(ranks, make_mpi_collectives, dataset, options, expected, kSameBits);
  }
}

/// Images, videos and clips in chunks, on tp and cp together.
TEST_P(ResumeBits, AreThoseOfItemsOfThreeKinds) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const auto layout = std::ranges::find_if(
      kAxisLayouts, [](const AxisLayout& one) { return one.tp == 2 && one.cp == 2; });
  TinyRunOptions options = run_on(*layout, GetParam());
  options.config_json = tiny_qwen2_5_omni_config();
  options.remake = shrink_images;
  options.deck.data.row_tokens = 90;
  options.deck.meshes["audio"] = options.deck.meshes["vision"];
  const MemoryDataset dataset =
      make_tiny_dataset(plan_of(options, kAxisRanks).model, 23, {1, 0, 2}, 5, {1, 1, 0});
  const StoppedRun expected =
      run_through(ranks, make_mpi_collectives, dataset, options, shared_ / "omni");
  expect_resumes(ranks, make_mpi_collectives, dataset, options, expected, kSameBits);
}

/// The families have shared keys, per-layer inputs, clipped linears, experts, a conformer,
/// resampled features and videos. In stages their encoders, which train, have separate ranks.
TEST_P(ResumeBits, AreThoseOfFamilies) {
  const std::array<std::string, 9> kFamilies{
      "gemma4_text with experts on a grid",
      "gemma4 with images, shared keys and inputs of each layer in stages",
      "gemma4 with audio on a grid",
      "gemma4 with audio in stages",
      "qwen3_omni_moe_thinker in stages",
      "llava_onevision on a grid",
      "internvl on a grid",
      "smolvlm in stages",
      "glm4v on a grid"};
  const Communicator ranks = first_ranks(kAxisRanks);
  size_t compared = 0;
  for (const FamilyLayout& layout : family_layouts()) {
    if (std::ranges::find(kFamilies, layout.name()) == kFamilies.end()) continue;
    SCOPED_TRACE(layout.name());
    TinyRunOptions options = layout.run();
    options.deck.precision.preset = GetParam();
    options.deck.schedule.steps = kStepsBeforeStop + kStepsAfterStop;
    if (layout.model->name == "gemma4_text with experts") options.deck.meshes["llm"].ep = 2;
    for (const EncoderSpec& encoder : make_model_spec(options.config_json).encoders)
      options.deck.encoders[encoder.name].train = true;
    const MemoryDataset dataset = layout.dataset();
    const StoppedRun expected = run_through(ranks, make_mpi_collectives, dataset, options,
                                            shared_ / std::to_string(compared++));
    expect_resumes(ranks, make_mpi_collectives, dataset, options, expected, kSameBits);
  }
  EXPECT_EQ(compared, kFamilies.size());
}

INSTANTIATE_TEST_SUITE_P(Precisions, ResumeBits, ::testing::Values("fp32", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace zea::testing::test_resume_bits
