// SPDX-License-Identifier: Apache-2.0
// LLaVA-OneVision interpolates the features of large images from several rows of the projector:
// with these rows on different ranks it trains in fp64 as on one rank.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/compared_run.hpp"
#include "support/measured_models.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_resampled_features {
namespace {

/// The sharding of the tower's rows, and its ranks.
struct Layout {
  const char* name;
  int ranks;
  void (*set)(Options&);
};

/// The text lies on the same ranks, in blocks.
void set_tower(Options& deck, int tp, int cp, const char* mode = "allgather_kv") {
  ModuleMeshOptions &vision = deck.meshes["vision"], &llm = deck.meshes["llm"];
  vision.tp = tp;
  vision.cp = cp;
  vision.cp_mode = mode;
  if (cp > 1 && vision.cp_mode != CpMode::Ulysses) vision.cp_block = 8;
  llm.cp = tp * cp;
  llm.cp_block = 8;
}

/// Or on ranks of its own.
void set_tower_apart(Options& deck, int tp, int cp, const char* mode = "allgather_kv") {
  set_tower(deck, tp, cp, mode);
  deck.mesh.placement = "disjoint";
  deck.meshes["llm"] = {};
}

const Layout kLayouts[] = {
    {"tp 2", 2, [](Options& deck) { set_tower(deck, 2, 1); }},
    {"tp 2, each rank with all tokens", 2,
     [](Options& deck) {
       set_tower(deck, 2, 1);
       deck.meshes["vision"].sequence_parallel = AutoOption::of(false);
     }},
    {"cp 2, gathered", 2, [](Options& deck) { set_tower(deck, 1, 2); }},
    {"cp 2, ring", 2, [](Options& deck) { set_tower(deck, 1, 2, "ring"); }},
    {"cp 2, ulysses", 2, [](Options& deck) { set_tower(deck, 1, 2, "ulysses"); }},
    {"cp 2, zigzag", 2,
     [](Options& deck) {
       set_tower(deck, 1, 2, "ring");
       deck.meshes["vision"].cp_block = ModuleMeshOptions{}.cp_block;
       deck.meshes["vision"].cp_distribution = "zigzag";
     }},
    {"cp 4, ulysses in pairs and a ring", 4,
     [](Options& deck) {
       set_tower(deck, 1, 4, "ulysses_ring");
       deck.meshes["vision"].cp_ulysses_ranks = 2;
     }},
    {"tp 2, cp 2, ring", 4, [](Options& deck) { set_tower(deck, 2, 2, "ring"); }},
    {"tp 2, cp 2, ulysses, each rank with all tokens of its cp share", 4,
     [](Options& deck) {
       set_tower(deck, 2, 2, "ulysses");
       deck.meshes["vision"].sequence_parallel = AutoOption::of(false);
     }},
    {"tp 2, dealt to 2", 4,
     [](Options& deck) {
       set_tower(deck, 2, 1);
       deck.meshes["llm"].tp = 2;
     }},
    {"tp 2 of the tower, tp 2 of the text, two replicas", 4,
     [](Options& deck) {
       set_tower(deck, 2, 1);
       deck.meshes["llm"] = deck.meshes["vision"];
     }},
    {"tp 2 on ranks of its own, beside two stages", 4,
     [](Options& deck) {
       set_tower_apart(deck, 2, 1);
       deck.meshes["llm"].pp = 2;
     }},
    {"cp 2 on ranks of its own, beside tp 2", 4,
     [](Options& deck) {
       set_tower_apart(deck, 1, 2, "ring");
       deck.meshes["llm"].tp = 2;
     }},
    {"tp 2 in two stages, beside the text", 5,
     [](Options& deck) {
       set_tower_apart(deck, 2, 1);
       deck.meshes["vision"].pp = 2;
     }},
    {"cp 2, dealt to 2, on ranks of its own, beside two stages", 6,
     [](Options& deck) {
       set_tower_apart(deck, 1, 2, "ring");
       deck.meshes["vision"].encoder_dp = 2;
       deck.meshes["llm"].pp = 2;
     }},
};

/// Two layers and four heads, as modules in stages and exchanges of heads want them.
std::string config_json() {
  nlohmann::json config = nlohmann::json::parse(measured_model("llava_onevision").config);
  config["vision_config"].update(
      {{"hidden_size", 32}, {"num_attention_heads", 4}, {"num_hidden_layers", 2}});
  return config.dump();
}

TinyRunOptions make_run() {
  TinyRunOptions run;
  run.config_json = config_json();
  run.steps = 2;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 200;
  run.deck.data.rows_per_microbatch = 1;
  run.deck.optim.lr = 1e-2;
  run.deck.optim.clip_norm = 0.5;
  run.deck.schedule = {.steps = run.steps, .global_batch = 5};
  return run;
}

/// Single images are interpolated, and some samples have images of few features.
MemoryDataset make_dataset(const std::vector<int>& images) {
  return make_tiny_dataset(make_model_spec(config_json()), 9, images, 5);
}

TEST(ResampledFeatures, EqualThoseOfOneRank) {
  const Communicator world = testing::world().communicator();
  const MemoryDataset dataset = make_dataset({1, 2, 0, 1, 1});
  const Communicator alone = world.split(world.rank(), "alone");
  const ComparedResult expected = run_compared(alone, make_mpi_collectives, dataset, make_run());
  sweep(make_trials(kLayouts), [&](const Communicator& part, const Trial& trial) {
    TinyRunOptions run = make_run();
    kLayouts[trial.layout].set(run.deck);
    expect_equal(run_compared(part, trial.make, dataset, run), expected);
  });
}

}  // namespace
}  // namespace zea::testing::test_resampled_features
