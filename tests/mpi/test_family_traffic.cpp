// SPDX-License-Identifier: Apache-2.0
// The traffic of a step of each family equals the plan's.
#include <gtest/gtest.h>

#include "support/counted_traffic.hpp"
#include "support/made_up_models.hpp"
#include "support/measured_models.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_family_traffic {
namespace {

void take_images_of_any_size(TinyRunOptions& run) {
  run.config_json = tiny_llava_config({.image_size = 24, .siglip = true});
  run.remake = merge_images_of_any_size;
}

void take_mistral3(TinyRunOptions& run) {
  run.config_json = tiny_llava_config({.image_size = 24, .pixtral = true, .merges = true});
}

void take_qwen_vl(TinyRunOptions& run, const std::string& config) {
  run.config_json = config;
  run.remake = testing::shrink_images;
}

void take_gemma3(TinyRunOptions& run) {
  run.config_json = tiny_llava_config({.image_size = 24, .siglip = true, .gemma3 = true});
}

/// Each of its modules on so many ranks.
void take_measured(TinyRunOptions& run, const char* name, int tp, int cp = 1) {
  const MeasuredModel& model = measured_model(name);
  run.config_json = model.config;
  if (model.remake != nullptr) run.remake = model.remake;
  run.deck.data.row_tokens = 400;
  run.deck.meshes["vision"] = {};
  for (const std::string& module : make_model_spec(model.config).modules()) {
    ModuleMeshOptions& mesh = run.deck.meshes[module];
    mesh.strategy = "no_shard";
    mesh.tp = tp;
    mesh.cp = cp;
    if (cp > 1) mesh.cp_block = 8;
  }
}

constexpr const char* kGemma4E4b = "gemma4_text with shared keys and inputs of each layer";

const TrafficLayout kLayouts[] = {
    {"tp 2, images of any size, four patches a feature",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       take_images_of_any_size(run);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
     }},
    {"cp 2, ring, images of any size, four patches a feature",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_images_of_any_size(run);
       use_cp(run, "ring", 2);
     }},
    {"tp 2, images cut into tiles",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       run.remake = testing::cut_into_tiles;
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
     }},
    {"cp 2, ring, images cut into tiles",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       run.remake = testing::cut_into_tiles;
       use_cp(run, "ring", 2);
     }},
    {"tp 2, qwen2_vl",
     2,
     {"llm.tp", "llm.kv_holders", "vision.tp"},
     [](TinyRunOptions& run) {
       take_qwen_vl(run, tiny_qwen2_vl_config());
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
     }},
    {"tp 2 and cp 2, qwen2_5_omni_thinker",
     4,
     {"llm.tp", "llm.kv_holders", "llm.cp_outer", "vision.tp", "vision.cp_outer", "audio.tp",
      "audio.cp_outer"},
     [](TinyRunOptions& run) { take_measured(run, "qwen2_5_omni_thinker", 2, 2); }},
    {"tp 2 and cp 2, qwen3_omni_moe_thinker",
     4,
     {"llm.tp", "llm.kv_holders", "llm.cp_outer", "vision.tp", "vision.cp_outer", "audio.tp",
      "audio.cp_outer"},
     [](TinyRunOptions& run) { take_measured(run, "qwen3_omni_moe_thinker", 2, 2); }},
    {"tp 2 of llm, pp 2, qwen3_vl",
     4,
     {"llm.tp", "llm.kv_holders"},
     [](TinyRunOptions& run) {
       take_qwen_vl(run, tiny_qwen3_vl_config());
       run.deck.meshes["llm"].tp = run.deck.meshes["llm"].pp = 2;
     }},
    {"tp 2, qwen3_5",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "qwen3_5", 2); }},
    {"tp 2, qwen3_5_moe",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "qwen3_5_moe", 2); }},
    {"cp 2, heads of gated delta rules, qwen3_5",
     2,
     {"llm.cp_outer", "llm.cp"},
     [](TinyRunOptions& run) {
       take_measured(run, "qwen3_5", 1, 2);
       run.deck.meshes["llm"].cp_scan = CpScan::Ulysses;
     }},
    {"tp 2 and cp 2, states of gated delta rules, recomputed, qwen3_5",
     4,
     {"llm.tp", "llm.cp_outer", "llm.cp"},
     [](TinyRunOptions& run) {
       take_measured(run, "qwen3_5", 2, 2);
       run.deck.meshes["llm"].cp_scan = CpScan::States;
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"cp 4 of uniform runs, states of gated delta rules, bf16",
     4,
     {"llm.cp"},
     [](TinyRunOptions& run) {
       run.remake = mix_delta_rules;
       run.deck.precision.preset = "bf16";
       run.deck.data.row_tokens = 200;
       ModuleMeshOptions& llm = run.deck.meshes["llm"];
       llm.cp = 4;
       llm.cp_distribution = "uniform";
       llm.cp_scan = CpScan::States;
     }},
    {"cp 3, which does not divide the heads of gated delta rules, zigzag",
     3,
     {"llm.cp_outer", "llm.cp"},
     [](TinyRunOptions& run) {
       run.remake = mix_delta_rules;
       run.deck.data.packing = false;
       run.deck.meshes["llm"].cp = 3;
       run.deck.meshes["llm"].cp_distribution = "zigzag";
     }},
    {"cp 2, ring, qwen2_5_vl",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_qwen_vl(run, tiny_qwen2_5_vl_config());
       use_cp(run, "ring", 2);
     }},
    {"tp 2, gemma3",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       take_gemma3(run);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
     }},
    {"cp 2, ring, gemma3, frozen tower",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_gemma3(run);
       use_cp(run, "ring", 2);
       run.deck.encoders["vision"].train = false;
     }},
    {"tp 2 and cp 2, gemma4 with images, whole in windows",
     4,
     {"llm.tp", "llm.cp_outer", "vision.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "gemma4 with images", 2, 2);
       each(run, [](ModuleMeshOptions& mesh) { mesh.cp_mode = "ring"; });
     }},
    {"tp 2, gemma4 with images and clipped linears, recomputed",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       take_measured(run, "gemma4 with images and clipped linears", 2);
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"tp 2 and cp 2, ring, glm4v",
     4,
     {"llm.tp", "llm.cp_outer", "vision.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "glm4v", 2, 2);
       each(run, [](ModuleMeshOptions& mesh) { mesh.cp_mode = "ring"; });
     }},
    {"tp 2 and cp 2, ring, kimi_k25",
     4,
     {"llm.tp", "llm.cp_outer", "vision.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "kimi_k25", 2, 2);
       each(run, [](ModuleMeshOptions& mesh) { mesh.cp_mode = "ring"; });
     }},
    {"tp 2, mistral3",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       take_mistral3(run);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
     }},
    {"cp 2, ring, mistral3, frozen vision",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_mistral3(run);
       use_cp(run, "ring", 2);
       run.deck.encoders["vision"].train = false;
     }},
    {"tp 2, llava_next",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "llava_next", 2); }},
    {"tp 2, llava_onevision",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "llava_onevision", 2); },
     {1, 0, 1}},
    {"cp 2, ring, llava_onevision",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "llava_onevision", 1);
       use_cp(run, "ring", 2);
     },
     {1, 0, 1}},
    {"tp 2, cp 2, llava_onevision",
     4,
     {"llm.tp", "vision.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) { take_measured(run, "llava_onevision", 2, 2); },
     {1, 0, 1}},
    {"cp 2 of the tower on ranks of its own, llava_onevision",
     4,
     {"llm.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "llava_onevision", 1, 2);
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["llm"] = {};
       run.deck.meshes["llm"].strategy = "no_shard";
       run.deck.meshes["llm"].tp = 2;
     },
     {1, 0, 1}},
    {"tp 2 of llm, cp 2 of the tower, internvl",
     2,
     {"llm.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "internvl", 2);
       run.deck.meshes["vision"].tp = 1;
       run.deck.meshes["vision"].cp = 2;
       run.deck.meshes["vision"].cp_block = 8;
     }},
    {"tp 2 and cp 2, norms of all queries and of all keys, recomputed, internvl",
     4,
     {"llm.tp", "vision.tp", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "internvl", 2, 2);
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"tp 2, frozen norms of all queries and of all keys, internvl",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       take_measured(run, "internvl", 2);
       run.deck.encoders["vision"].train = false;
     }},
    {"cp 2, ring, smolvlm",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "smolvlm", 1);
       use_cp(run, "ring", 2);
     }},
    {"tp 2, idefics3",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "idefics3", 2); }},
    {"tp 2, a tower with registers",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) { take_measured(run, "llava with registers", 2); }},
    {"cp 2, ring, a tower of vit",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "llava of vit", 1);
       use_cp(run, "ring", 2);
     }},
    {"tp 2, qwen2_audio",
     2,
     {"llm.tp", "audio.tp"},
     [](TinyRunOptions& run) { take_measured(run, "clips of their own length, averaged", 2); }},
    {"cp 2, voxtral",
     2,
     {"llm.cp_outer", "audio.cp_outer"},
     [](TinyRunOptions& run) {
       take_measured(run, "three positions of sound side by side", 1, 2);
     }},
    {"two stages and fully sharded audio on its own rank, gemma4",
     3,
     {"llm.tied", "llm.pp0>llm.pp1 outputs", "llm.pp0>llm.pp1 gradients"},
     [](TinyRunOptions& run) {
       take_measured(run, "gemma4 with audio", 1);
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["audio"].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
     }},
    {"tp 2 and cp 2 of llm, clips of all ranks, gemma4",
     4,
     {"llm.tp", "llm.cp_outer", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) {
       take_measured(run, "gemma4 with audio", 2, 2);
       run.deck.meshes["audio"] = {};
       run.deck.meshes["audio"].strategy = "no_shard";
     }},
    {"two stages, both encoders on their own ranks, qwen3_omni_moe_thinker",
     4,
     {"vision.pp0>llm.pp0 outputs", "vision.pp0>llm.pp0 gradients", "audio.pp0>llm.pp0 outputs",
      "audio.pp0>llm.pp0 gradients", "llm.pp0>llm.pp1 outputs", "llm.pp0>llm.pp1 gradients"},
     [](TinyRunOptions& run) {
       take_measured(run, "qwen3_omni_moe_thinker", 1);
       run.deck.mesh.placement = "disjoint";
       for (const char* encoder : {"vision", "audio"}) run.deck.meshes[encoder].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
     }},
    {"cp 2, ring, shared keys and inputs of each layer",
     2,
     {"llm.cp_outer"},
     [](TinyRunOptions& run) { take_measured(run, kGemma4E4b, 1, 2); }},
    {"ep 4 over cp 2 and two replicas, experts beside MLPs",
     4,
     {"llm.ep_dp_shard", "llm.ep_cp"},
     [](TinyRunOptions& run) {
       take_measured(run, "gemma4_text with experts", 1, 2);
       run.deck.meshes["llm"].ep = 4;
     }},
    {"two stages of tp 2, shared keys and inputs of each layer",
     4,
     {"llm.tp", "llm.kv_holders", "llm.tied", "llm.pp0>llm.pp1 outputs",
      "llm.pp0>llm.pp1 gradients"},
     [](TinyRunOptions& run) {
       take_measured(run, kGemma4E4b, 2);
       run.deck.meshes["llm"].pp = 2;
     }},
    {"three stages, shared keys and inputs of each layer",
     3,
     {"llm.tied", "llm.pp0>llm.pp1 outputs", "llm.pp0>llm.pp2 outputs",
      "llm.pp0>llm.pp2 gradients"},
     [](TinyRunOptions& run) {
       take_measured(run, kGemma4E4b, 1);
       run.deck.meshes["llm"].stages = {
           {"llm.embed..llm.layers.0"}, {"llm.layers.1"}, {"llm.layers.2..llm.head"}};
     }},
    {"tp 2, phi3", 2, {"llm.tp"}, [](TinyRunOptions& run) { take_measured(run, "phi3", 2); }},
};

TEST(FamilyTraffic, CountedEqualsTheFormula) {
  const Communicator world = testing::world().communicator();
  for (const TrafficLayout& layout : kLayouts) expect_counted_traffic(world, layout);
}

}  // namespace
}  // namespace zea::testing::test_family_traffic
