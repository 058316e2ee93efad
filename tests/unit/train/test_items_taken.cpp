// SPDX-License-Identifier: Apache-2.0
// A rank decodes the items that its part of an encoder is given, and no other: on every rank of
// some layouts, each image is spoiled in turn, and a rank fails where it decodes it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_items_taken {
namespace {

constexpr int64_t kSamples = 6, kImages = 12;  // a replica's microbatch

struct Layout {
  const char* name;
  int ranks;
  void (*set)(Options&);
  std::vector<std::vector<int>> groups;  ///< one of which decodes an image, all of it together
};

void both(Options& deck, void (*change)(ModuleMeshOptions&)) {
  change(deck.meshes["vision"]);
  change(deck.meshes["llm"]);
}

const Layout kLayouts[] = {
    {"one rank", 1, [](Options&) {}, {{0}}},
    {"replicas", 2, [](Options&) {}, {{0}, {1}}},
    {"tp 2 x cp 2 of llm, images dealt",
     4,
     [](Options& deck) {
       deck.meshes["llm"].tp = deck.meshes["llm"].cp = 2;
       deck.meshes["llm"].cp_block = 8;
     },
     {{0}, {1}, {2}, {3}}},
    {"tp 2, every rank all tokens",
     2,
     [](Options& deck) {
       both(deck, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.sequence_parallel = AutoOption::of(false);
       });
     },
     {{0, 1}}},
    {"vision on ranks of its own",
     3,
     [](Options& deck) {
       deck.mesh.placement = "disjoint";
       deck.meshes["vision"].encoder_dp = 1;
       deck.meshes["llm"].pp = 2;
     },
     {{0}}},
    {"vision in two stages of its own",
     4,
     [](Options& deck) {
       deck.mesh.placement = "disjoint";
       deck.meshes["vision"].pp = 2;
       deck.meshes["vision"].encoder_dp = 1;
       deck.meshes["llm"].pp = 2;
     },
     {{0}}},
};

TinyRunOptions run_of(void (*set)(Options&)) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config();
  run.deck.data.row_tokens = 200;
  run.deck.schedule = {.steps = 1, .global_batch = kSamples};
  set(run.deck);
  return run;
}

/// Returns samples in which image `bad`, counted over all of them, cannot be decoded; -1: every
/// image can.
MemoryDataset samples_with(const ModelSpec& model, int64_t bad) {
  const MemoryDataset good = make_tiny_dataset(model, kSamples, {1, 3, 2}, 5);
  std::vector<Sample> samples;
  int64_t image = 0;
  for (int64_t id = 0; id < kSamples; ++id) {
    samples.push_back(good.read(id));
    for (Item& item : samples.back().items)
      if (image++ == bad) {
        item.raw = false;
        item.bytes = {1, 2, 3};
      }
  }
  EXPECT_EQ(image, kImages);
  return MemoryDataset(samples, item_kinds(model));
}

LoadedMicrobatch load(const Plan& plan, int rank, int64_t bad) {
  std::vector<int64_t> ids(kSamples);
  std::iota(ids.begin(), ids.end(), int64_t{0});
  return load_microbatch(samples_with(plan.model, bad), loading_on(plan, rank), ids);
}

bool decodes(const Plan& plan, int rank, int64_t image) {
  try {
    load(plan, rank, image);
    return false;
  } catch (const DataError&) {
    return true;
  }
}

/// How many images' values a rank has.
size_t images_of(const Plan& plan, const LoadedMicrobatch& loaded) {
  return loaded.values[0].size() / decoding_of(plan.model.encoders[0]).values();
}

TEST(ItemsTaken, EachImageIsDecodedOnceByTheRanksThatEncodeIt) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const Plan plan = plan_of(run_of(layout.set), layout.ranks);
    const int ranks = plan.mesh.ranks_per_replica();
    std::vector<size_t> decoded(static_cast<size_t>(layout.ranks), 0);
    for (int64_t image = 0; image < kImages; ++image)
      for (int replica = 0; replica < layout.ranks / ranks; ++replica) {
        std::vector<int> decoding;
        for (int rank = replica * ranks; rank < (replica + 1) * ranks; ++rank)
          if (decodes(plan, rank, image)) decoding.push_back(rank);
        EXPECT_EQ(std::ranges::count(layout.groups, decoding), 1) << "image " << image;
        for (const int rank : decoding) ++decoded[static_cast<size_t>(rank)];
      }
    for (int rank = 0; rank < layout.ranks; ++rank)
      EXPECT_EQ(images_of(plan, load(plan, rank, -1)), decoded[static_cast<size_t>(rank)]);
  }
}

TEST(ItemsTaken, RanksThatShareARowOfImagesDecodeThoseOfTheirTokens) {
  const Plan plan = plan_of(run_of([](Options& deck) {
                              both(deck, [](ModuleMeshOptions& mesh) {
                                mesh.tp = mesh.cp = 2;
                                mesh.cp_distribution = "uniform";
                              });
                            }),
                            4);
  size_t decoded = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const size_t images = images_of(plan, load(plan, rank, -1));
    EXPECT_LT(images, static_cast<size_t>(kImages));
    decoded += images;
  }
  EXPECT_GE(decoded, static_cast<size_t>(kImages));
  for (int64_t image = 0; image < kImages; ++image) {
    int ranks = 0;
    for (int rank = 0; rank < 4; ++rank) ranks += decodes(plan, rank, image);
    EXPECT_GE(ranks, 1) << "image " << image;
  }
}

TEST(ItemsTaken, WhereBadItemsAreMaskedAllRanksKnowThemAndHaveTheirOwnValues) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    TinyRunOptions run = run_of(layout.set);
    const Plan stops = plan_of(run, layout.ranks);
    run.deck.data.bad_items = BadItems::Mask;
    const Plan masks = plan_of(run, layout.ranks);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const LoadedMicrobatch loaded = load(masks, rank, 5);
      ASSERT_EQ(loaded.bad.size(), 1u);
      EXPECT_EQ(loaded.bad[0].sample, 2);
      EXPECT_EQ(images_of(masks, loaded), images_of(stops, load(stops, rank, -1)));
    }
  }
}

TEST(DecodingThreads, AreTheCoresThatComputingLeaves) {
  Options options;
  options.run.threads = 2;
  const struct {
    double cores;
    int threads;
  } rows[] = {{0.25, 1}, {1, 1}, {2, 1}, {3, 1}, {3.5, 1}, {4, 2}, {6, 4}, {24, 4}};
  for (const auto& [cores, threads] : rows) EXPECT_EQ(threads_on(cores, options), threads) << cores;
}

}  // namespace
}  // namespace zea::testing::test_items_taken
