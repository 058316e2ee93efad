// SPDX-License-Identifier: Apache-2.0
// data.cache_features changes nothing but the time of a step: the same losses and weights, bit for
// bit on one layout if microbatches are samples, and in fp64 those of one rank on others; and a
// foreign or damaged file in the folder is never used as features.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "h5/h5.hpp"
#include "support/compared_run.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_cached_features {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSamples = 14;

TinyRunOptions frozen_run(const std::string& config = tiny_llava_config()) {
  TinyRunOptions run;
  run.config_json = config;
  run.steps = 5;  // more than two epochs
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 40;
  run.deck.schedule = {.steps = 5, .global_batch = 7};
  run.deck.encoders["vision"].train = false;
  return run;
}

/// Microbatches of one sample: products of other numbers of rows may round otherwise.
TinyRunOptions unpacked_run() {
  TinyRunOptions run = frozen_run();
  run.deck.data.packing = false;
  return run;
}

MemoryDataset dataset_for(const TinyRunOptions& run, int64_t samples = kSamples) {
  return make_tiny_dataset(model_of(run.deck, run.config_json), samples, {1, 0, 2}, 5);
}

void expect_same_bits(const TinyResult& got, const TinyResult& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.grad_norms, expected.grad_norms);
  EXPECT_EQ(max_difference(got.weights, expected.weights), 0);
}

std::string part_file(const std::string& folder, int part = 0) {
  return folder + "/vision/part-00000" + std::to_string(part) + ".h5";
}

TEST(CachedFeatures, GiveTheSameBitsOnOneLayout) {
  for (const int ranks : {1, 2})
    for (const char* preset : {"fp32", "bf16"}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + preset);
      const Communicator part = first_ranks(ranks);
      if (part.size() == 0) continue;
      TinyRunOptions run = unpacked_run();
      run.deck.precision.preset = preset;
      const MemoryDataset dataset = dataset_for(run);
      const TinyResult without = run_tiny(part, make_host_collectives, dataset, run);
      const SharedDirectory folder(part);
      run.deck.data.cache_features = folder.path();
      for (const char* when : {"computed now", "read"}) {
        SCOPED_TRACE(when);
        expect_same_bits(run_tiny(part, make_host_collectives, dataset, run), without);
      }
    }
}

struct Layout {
  const char* name;
  int ranks;
  void (*set)(TinyRunOptions&);
};

void each(TinyRunOptions& run, void (*change)(ModuleMeshOptions&)) {
  change(run.deck.meshes["vision"]);
  change(run.deck.meshes["llm"]);
}

const Layout kLayouts[] = {
    {"full_shard", 4, [](TinyRunOptions&) {}},
    {"tp 2", 2, [](TinyRunOptions& run) { each(run, [](auto& mesh) { mesh.tp = 2; }); }},
    {"tp 2, every rank all tokens", 2,
     [](TinyRunOptions& run) {
       each(run, [](auto& mesh) {
         mesh.tp = 2;
         mesh.sequence_parallel = AutoOption::of(false);
       });
     }},
    {"cp 2, ring, two replicas", 4,
     [](TinyRunOptions& run) {
       each(run, [](auto& mesh) {
         mesh.cp = 2;
         mesh.cp_mode = "ring";
         mesh.cp_block = 8;
       });
     }},
    {"tp 2 x cp 2 of llm, images dealt", 4,
     [](TinyRunOptions& run) {
       run.deck.meshes["llm"].tp = run.deck.meshes["llm"].cp = 2;
       run.deck.meshes["llm"].cp_block = 8;
     }},
    {"tp 2 x cp 2 of both", 4,
     [](TinyRunOptions& run) {
       each(run, [](auto& mesh) {
         mesh.tp = mesh.cp = 2;
         mesh.cp_block = 8;
       });
     }},
    {"two stages, zero_bubble", 4,
     [](TinyRunOptions& run) {
       run.deck.meshes["llm"].pp = 2;
       run.deck.mesh.schedule = "zero_bubble";
     }},
    {"vision on ranks of its own", 3,
     [](TinyRunOptions& run) {
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["vision"].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
     }},
    {"vision in two stages of its own", 4,
     [](TinyRunOptions& run) {
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["vision"].pp = 2;
       run.deck.meshes["vision"].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
     }},
};

struct Model {
  const char* name;
  TinyRunOptions run;
};

std::vector<Model> models() {
  std::vector<Model> all{{"LLaVA", frozen_run()}};
  TinyRunOptions sized = frozen_run(tiny_llava_config({.image_size = 24, .siglip = true}));
  sized.remake = merge_images_of_any_size;
  all.push_back({"images of any size, four patches a feature", sized});
  TinyRunOptions tiled = frozen_run();
  tiled.remake = cut_into_tiles;
  all.push_back({"tiles", tiled});
  TinyRunOptions deep = frozen_run(tiny_qwen3_vl_config());
  deep.remake = shrink_images;
  all.push_back({"Qwen3-VL, features of several depths", deep});
  TinyRunOptions hears = frozen_run(tiny_llava_config({.audio = true}));
  hears.deck.encoders["audio"].train = false;
  all.push_back({"images and sound", hears});
  return all;
}

/// As its model is remade.
MemoryDataset remade_dataset(const TinyRunOptions& run) {
  return make_tiny_dataset(plan_of(run, 1).model, kSamples, {1, 0, 2}, 5);
}

void expect_equal_on(const Model& model, const std::vector<Layout>& layouts) {
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  const MemoryDataset dataset = remade_dataset(model.run);
  const ComparedResult expected = run_compared(alone, make_mpi_collectives, dataset, model.run);
  sweep(make_trials(layouts), [&](const Communicator& part, const Trial& trial) {
    SCOPED_TRACE(model.name);
    TinyRunOptions run = model.run;
    layouts[trial.layout].set(run);
    if (run.deck.encoders["audio"].train == false)
      run.deck.meshes["audio"] = run.deck.meshes["vision"];
    const SharedDirectory folder(part);
    run.deck.data.cache_features = folder.path();
    const ComparedResult got = run_compared(part, trial.make, dataset, run);
    if (part.rank() == 0) expect_equal(got, expected);
  });
}

TEST(CachedFeatures, OnOtherLayoutsAreAsOneRankComputesThem) {
  expect_equal_on(models()[0], {std::begin(kLayouts), std::end(kLayouts)});
}

TEST(CachedFeatures, AreThoseOfEveryKindOfEncoder) {
  const std::vector<Model> all = models();
  for (size_t m = 1; m < all.size(); ++m)
    expect_equal_on(all[m], {{"one rank", 1, [](TinyRunOptions&) {}}, kLayouts[1], kLayouts[0]});
}

/// Wide enough that they are written in several parts, by all ranks.
TinyRunOptions wide_run() {
  TinyRunOptions run = frozen_run(tiny_llava_config({.vision_hidden = 64}));
  run.deck.data.row_tokens = 2000;
  run.deck.schedule = {.steps = 1, .global_batch = 40};
  run.steps = 1;
  return run;
}

TEST(CachedFeatures, WhatLacksIsComputedAndNothingElse) {
  const Communicator all = world().communicator();
  TinyRunOptions run = wide_run();
  const MemoryDataset dataset = dataset_for(run, 1200);
  const SharedDirectory folder(all);
  run.deck.data.cache_features = folder.path();
  const TinyResult before = run_tiny(all, make_host_collectives, dataset, run);
  const std::string kept = part_file(folder.path(), 0), lost = part_file(folder.path(), 1),
                    torn = part_file(folder.path(), 2);
  ASSERT_TRUE(fs::exists(torn)) << "features of several parts";
  folder.barrier();
  if (all.rank() == 0) {
    fs::remove(lost);
    fs::resize_file(torn, fs::file_size(torn) / 2);
    std::ofstream(kept + ".1.tmp") << "left by a run that died";
  }
  folder.barrier();
  const auto written = fs::last_write_time(kept);
  expect_same_bits(run_tiny(all, make_host_collectives, dataset, run), before);
  EXPECT_EQ(fs::last_write_time(kept), written);
  EXPECT_TRUE(fs::exists(lost));
  EXPECT_FALSE(fs::exists(kept + ".1.tmp"));
}

std::string refusal_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(CachedFeatures, OfOtherWeightsSettingsAndDataAreRefused) {
  const Communicator part = first_ranks(1);
  if (part.size() == 0) return;
  TinyRunOptions run = frozen_run();
  run.steps = 2;
  const MemoryDataset dataset = dataset_for(run);
  const SharedDirectory folder(part);
  run.deck.data.cache_features = folder.path();
  run_tiny(part, make_host_collectives, dataset, run);
  const auto refusal = [&](const TinyRunOptions& options, const MemoryDataset& data) {
    return refusal_of([&] { run_tiny(part, make_host_collectives, data, options); });
  };
  const auto expect_differing = [&](const std::string& found, const std::string& kind) {
    EXPECT_NE(found.find("made with other " + kind + ", so"), std::string::npos) << found;
  };
  TinyRunOptions other = run;
  other.weights_seed = 2;
  expect_differing(refusal(other, dataset), "weights");
  other = run;
  other.deck.data.image_mean = {0.5, 0.5, 0.5};
  expect_differing(refusal(other, dataset), "preprocessing");
  other = run;
  other.deck.precision.preset = "fp32";
  expect_differing(refusal(other, dataset), "type, other weights");
  expect_differing(refusal(run, dataset_for(run, kSamples - 1)), "data");
  // Samples alike but for their pixels.
  std::vector<Sample> samples;
  for (int64_t id = 0; id < kSamples; ++id) {
    samples.push_back(dataset.read(id));
    for (Item& item : samples.back().items) item.bytes[0] ^= 1;
  }
  const std::string found = refusal(run, MemoryDataset(std::move(samples), dataset.kinds()));
  EXPECT_NE(found.find("is not the one whose features are kept"), std::string::npos) << found;
  EXPECT_EQ(refusal(run, dataset), "");
}

TEST(CachedFeatures, AreNotReadWhenTheyAreDamaged) {
  const Communicator part = first_ranks(1);
  if (part.size() == 0) return;
  TinyRunOptions run = frozen_run();
  run.steps = 2;
  const MemoryDataset dataset = dataset_for(run);
  const SharedDirectory folder(part);
  run.deck.data.cache_features = folder.path();
  run_tiny(part, make_host_collectives, dataset, run);
  {
    const H5File file = H5File::open(part_file(folder.path()));
    std::fstream bytes(file.path(), std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(file.data_offset("features") + 8);
    bytes.put('x');
  }
  const std::string found =
      refusal_of([&] { run_tiny(part, make_host_collectives, dataset, run); });
  EXPECT_NE(found.find("has damaged features"), std::string::npos) << found;
}

/// They are bad in the same samples, whose labels count nowhere.
TEST(CachedFeatures, OfBadItemsMaskTheSameSamples) {
  const Communicator part = first_ranks(2);
  if (part.size() == 0) return;
  TinyRunOptions run = unpacked_run();
  run.deck.data.bad_items = "mask";
  const MemoryDataset good = dataset_for(run);
  std::vector<Sample> samples;
  for (int64_t id = 0; id < kSamples; ++id) samples.push_back(good.read(id));
  samples[3].items[0].bytes.resize(7);
  const MemoryDataset dataset(std::move(samples), good.kinds());
  const TinyResult without = run_tiny(part, make_host_collectives, dataset, run);
  const SharedDirectory folder(part);
  run.deck.data.cache_features = folder.path();
  for (int time = 0; time < 2; ++time)
    expect_same_bits(run_tiny(part, make_host_collectives, dataset, run), without);
}

}  // namespace
}  // namespace zea::testing::test_cached_features
