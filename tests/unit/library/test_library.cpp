// SPDX-License-Identifier: Apache-2.0
// The public library: data sets that it writes and reads, and plans.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>

#include "support/files.hpp"
#include "zea/dataset.hpp"
#include "zea/plan.hpp"

namespace zea::test_library {
namespace {

using ::testing::IsSubstring;

DatasetItem raw_image() {
  return {.bytes = {1, 2, 3, 4, 5, 6}, .raw = true, .height = 1, .width = 2, .channels = 3};
}

DatasetItem raw_video() {
  return {.type = DatasetItem::Type::Video,
          .bytes = {1, 2, 3, 4},
          .raw = true,
          .height = 2,
          .width = 1,
          .channels = 1,
          .rate = 2000,
          .frame_ends = {2, 4}};
}

DatasetItem raw_sound() {
  return {.type = DatasetItem::Type::Audio, .bytes = {1, 0, 2, 0}, .raw = true, .rate = 16000};
}

TEST(Library, ReadsTheDataSetThatItWrote) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/set.h5";
  DatasetWriter writer(path, {.image = 7, .audio = 6, .video = 5},
                       {.classes = {"bag"}, .token_bytes = {"a", "b", "c", "", "", "", "", ""}});
  writer.add({.tokens = {7, 5, 6, 1},
              .loss_mask = {0, 0, 0, 1},
              .items = {raw_image(), raw_video(), raw_sound()},
              .label = 0,
              .answers = {"x", "yz"},
              .source = "one\na.png"});
  writer.add({.tokens = {2}, .loss_mask = {0}});
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();

  const DatasetReader data(path);
  EXPECT_EQ(data.samples(), 2);
  EXPECT_EQ(data.max_token(), 7);
  EXPECT_EQ(data.placeholders().video, 5);
  EXPECT_EQ(data.counts(0).targets, 1);
  EXPECT_EQ(data.counts(0).clips, 1);
  EXPECT_EQ(data.texts().token_bytes.at(2), "c");
  const DatasetSample sample = data.read(0);
  EXPECT_EQ(sample.tokens, (decltype(sample.tokens){7, 5, 6, 1}));
  EXPECT_EQ(sample.answers, (decltype(sample.answers){"x", "yz"}));
  EXPECT_EQ(sample.source, "one\na.png");
  ASSERT_EQ(sample.items.size(), 3u);
  EXPECT_EQ(sample.items[0].bytes, raw_image().bytes);
  EXPECT_EQ(sample.items[0].width, 2);
  EXPECT_EQ(sample.items[1].frame_ends, raw_video().frame_ends);
  EXPECT_EQ(sample.items[1].rate, 2000);
  EXPECT_EQ(decode_picture(sample.items[1], 1).pixels[3], 4);
  EXPECT_EQ(sample.items[2].type, DatasetItem::Type::Audio);
  EXPECT_EQ(sample.items[2].rate, 16000);
  EXPECT_EQ(sample.items[2].bytes, raw_sound().bytes);
  EXPECT_THROW(data.read(2), DataError);
}

TEST(Library, WritesNoSampleThatCannotBeRead) {
  const TemporaryDirectory directory;
  DatasetWriter writer(directory.path() + "/set.h5", {.image = 7});
  const auto fault_of = [&](const DatasetSample& sample) -> std::string {
    try {
      writer.add(sample);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault_of({.tokens = {1}, .loss_mask = {0}}), "");
  EXPECT_PRED_FORMAT2(IsSubstring, "set.h5: sample 1: 1 tokens",
                      fault_of({.tokens = {1}, .loss_mask = {}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "masks 0 or 1", fault_of({.tokens = {1}, .loss_mask = {2}}));
  DatasetItem broken{.bytes = {0xff, 0xd8, 0xff, 0}};
  EXPECT_PRED_FORMAT2(
      IsSubstring, "sample 1: ",
      fault_of({.tokens = {7, 7}, .loss_mask = {0, 0}, .items = {raw_image(), broken}}));
  EXPECT_PRED_FORMAT2(IsSubstring, "no placeholder token of videos",
                      fault_of({.tokens = {5}, .loss_mask = {0}, .items = {raw_video()}}));
  writer.finish();
  EXPECT_EQ(DatasetReader(directory.path() + "/set.h5").samples(), 1);
}

TEST(Library, LeavesNothingOfADataSetThatWasNotFinished) {
  const TemporaryDirectory directory;
  { DatasetWriter(directory.path() + "/set.h5").add({.tokens = {1}, .loss_mask = {0}}); }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

PlanRequest request_of(std::vector<std::string> overrides, int ranks) {
  const std::string name = ZEA_INPUTS "/fashion_captions_2m";
  overrides.insert(overrides.end(), {"model.weights=''", "model.config='" + name + ".json'"});
  return {.deck = name + ".toml", .overrides = std::move(overrides), .ranks = ranks};
}

TEST(Library, PlansADeck) {
  const PlannedRun plan = plan_run(request_of({"mesh.llm.pp=2", "mesh.vision.pp=1"}, 4));
  EXPECT_EQ(plan.ranks, 4);
  EXPECT_EQ(plan.replicas, 2);
  EXPECT_PRED_FORMAT2(IsSubstring, "4 ranks", plan.text);
  EXPECT_PRED_FORMAT2(IsSubstring, "# the deck with every key", plan.text);
  ASSERT_EQ(plan.groups.size(), 2u);
  for (const RankGroup& group : plan.groups) {
    EXPECT_GT(group.memory.parameters, 0);
    EXPECT_GT(group.memory.activations, 0);
    EXPECT_GT(
        std::accumulate(group.sent.begin(), group.sent.end(), int64_t{0},
                        [](int64_t sum, const auto& of_group) { return sum + of_group.second; }),
        0);
  }
  EXPECT_GT(plan.model_flops, 0);
}

TEST(Library, ThrowsTheFaultsOfADeck) {
  EXPECT_THROW(plan_run(request_of({"optim.lrr=1"}, 1)), DeckError);
  EXPECT_THROW(plan_run(request_of({"mesh.llm.tp=3"}, 1)), PlanError);
  try {
    plan_run(request_of({"optim.lrr=1"}, 1));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Usage);
    EXPECT_PRED_FORMAT2(IsSubstring, "optim.lrr", error.what());
  }
}

}  // namespace
}  // namespace zea::test_library
