// SPDX-License-Identifier: Apache-2.0
// Traffic of a step: the bytes that the mesh counts on every rank equal those that the plan
// computes, for every group by its name, whatever the layout.
#include "estimate/traffic.hpp"

#include <gtest/gtest.h>

#include "support/counted_traffic.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/scattered_buffers.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_counted_traffic {
namespace {

/// In a folder that the test makes.
void keep_features(TinyRunOptions& run) {
  run.deck.encoders["vision"].train = false;
  run.deck.data.cache_features = "kept";
}

const TrafficLayout kLayouts[] = {
    {"one rank", 1, {}, [](TinyRunOptions&) {}},
    {"DDP", 2, {"llm.dp_replicate+dp_shard+encoder_dp+cp"}, [](TinyRunOptions&) {}},
    {"DDP of three, which no buffer divides",
     3,
     {"vision.dp_replicate+dp_shard+encoder_dp+cp"},
     [](TinyRunOptions&) {}},
    {"full_shard",
     4,
     {"llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.strategy = "full_shard"; });
     }},
    {"hybrid_shard, bf16",
     4,
     {"llm.dp_shard+encoder_dp+cp", "llm.dp_replicate"},
     [](TinyRunOptions& run) {
       run.deck.mesh.dp_replicate = 2;
       run.deck.precision.preset = "bf16";
       run.deck.precisions["llm"].reduce_dtype = "bf16";
       each(run, [](ModuleMeshOptions& mesh) { mesh.strategy = "hybrid_shard"; });
     }},
    {"buffers of one module over different ranks",
     4,
     {"llm.dp_shard+encoder_dp+cp", "llm.dp_replicate", "llm.dp_replicate+dp_shard+encoder_dp+cp",
      "llm.dp_replicate+encoder_dp+cp", "llm.dp_shard"},
     [](TinyRunOptions& run) {
       run.deck.mesh.dp_replicate = 2;
       each(run, [](ModuleMeshOptions& mesh) { mesh.strategy = "hybrid_shard"; });
       run.adjust = scatter_buffers;
     }},
    {"resharded to groups of two",
     4,
     {"llm.shard_subgroup"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.strategy = "full_shard";
         mesh.reshard_after_forward = AutoOption::of_count(2);
       });
     }},
    {"tp 2",
     2,
     {"llm.tp", "vision.tp", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) { each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; }); }},
    {"tp 2, every rank all tokens",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.sequence_parallel = AutoOption::of(false);
       });
     }},
    {"tp 2, rows in chunks",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.tp_chunks = 3;
       });
       run.deck.llm.lora.targets = {"v_proj", "down_proj"};
     }},
    {"tp 4, every rank all tokens, in chunks",
     4,
     {"llm.tp"},
     [](TinyRunOptions& run) {
       run.deck.meshes["llm"].tp = 4;
       run.deck.meshes["llm"].tp_chunks = 4;
       run.deck.meshes["llm"].sequence_parallel = AutoOption::of(false);
     }},
    {"tp 4 of llm alone, repeated KV heads",
     4,
     {"llm.tp", "llm.kv_holders", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) { run.deck.meshes["llm"].tp = 4; }},
    {"tp 2, checkpointed, frozen vision",
     2,
     {"llm.tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.model.activation_checkpointing = AutoOption::of_count(2);
       run.deck.encoders["vision"].train = false;
     }},
    {"tp 2, only the projector trains",
     2,
     {"llm.tp", "vision.tp", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.encoders["vision"].train = run.deck.llm.train = false;
     }},
    {"tp 2, adapters",
     2,
     {"llm.tp", "vision.tp", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.llm.lora.targets = {"*"};
       run.deck.encoders["vision"].lora = {.targets = {"q_proj", "linear_1"}, .rank = 3};
     }},
    {"tp 2, every rank all tokens, adapters",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.sequence_parallel = AutoOption::of(false);
       });
       run.deck.llm.lora.targets = {"v_proj", "down_proj"};
     }},
    {"cp 2, allgather_kv",
     2,
     {"llm.cp_outer", "vision.cp_outer", "llm.encoder_dp+cp+tp"},
     [](TinyRunOptions& run) { use_cp(run, "allgather_kv", 2); }},
    {"cp 2, ring",
     2,
     {"llm.cp_outer", "vision.cp_outer"},
     [](TinyRunOptions& run) { use_cp(run, "ring", 2); }},
    {"ep 2 of four replicas, experts sharded over two",
     4,
     {"llm.ep_dp_shard", "llm.expert_dp_shard+expert_cp", "llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       run.config_json = with_experts(tiny_llava_config(), 4);
       run.deck.meshes["llm"].strategy = "full_shard";
       run.deck.meshes["llm"].ep = 2;
       run.deck.data.packing = false;
     }},
    {"ep 2 of four replicas, adapters of each expert and of the router",
     4,
     {"llm.ep_dp_shard", "llm.expert_dp_shard+expert_cp", "llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       run.config_json = with_experts(tiny_llava_config(), 4);
       run.deck.meshes["llm"].strategy = "full_shard";
       run.deck.meshes["llm"].ep = 2;
       run.deck.llm.lora = {.targets = {"gate", "*.experts.*", "*shared*"}, .rank = 3};
     }},
    {"ep 4 over cp 2 and two replicas, recomputed",
     4,
     {"llm.ep_dp_shard", "llm.ep_cp"},
     [](TinyRunOptions& run) {
       use_cp(run, "ring", 2);
       run.config_json = with_experts(tiny_llava_config(), 4);
       run.deck.meshes["llm"].ep = 4;
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"ep 4 over cp 2 and two replicas, exchanged, every token by all ranks, recomputed",
     4,
     {"llm.ep_dp_shard", "llm.ep_cp"},
     [](TinyRunOptions& run) {
       use_cp(run, "ring", 2);
       run.config_json = with_experts(tiny_llava_config(), 4, 4);
       run.deck.meshes["llm"].ep = 4;
       run.deck.meshes["llm"].ep_dispatch = "alltoall";
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"ep 4 over cp 2 and two replicas, exchanged",
     4,
     {"llm.ep_dp_shard", "llm.ep_cp"},
     [](TinyRunOptions& run) {
       use_cp(run, "ring", 2);
       run.config_json = with_experts(tiny_llava_config(), 8);
       run.deck.meshes["llm"].ep = 4;
       run.deck.meshes["llm"].ep_dispatch = "alltoall";
     },
     {1, 0, 2},
     {"llm.ep_dp_shard", "llm.ep_cp"}},
    {"ep 2 beside tp 2, Muon",
     4,
     {"llm.ep_dp_shard", "llm.tp"},
     [](TinyRunOptions& run) {
       run.config_json = with_experts(tiny_llava_config(), 4);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.meshes["llm"].ep = 2;
       run.deck.optim.kind = "muon";
       run.deck.optim.momentum = 0.95;
     }},
    {"ep 4 over tp 2 and two replicas, Muon, recomputed",
     4,
     {"llm.ep_dp_shard", "llm.tp"},
     [](TinyRunOptions& run) {
       run.config_json = with_experts(tiny_llava_config(), 4);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.meshes["llm"].ep = 4;
       run.deck.meshes["llm"].etp = 1;
       run.deck.optim.kind = "muon";
       run.deck.optim.momentum = 0.95;
       run.deck.model.activation_checkpointing = AutoOption::of_count(1);
     }},
    {"ep 2 over tp 2, experts sharded over two, adapters",
     4,
     {"llm.tp", "llm.expert_dp_shard+expert_cp"},
     [](TinyRunOptions& run) {
       run.config_json = with_experts(tiny_llava_config(), 4);
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.strategy = "full_shard";
       });
       run.deck.meshes["llm"].ep = 2;
       run.deck.meshes["llm"].etp = 1;
       run.deck.llm.lora = {.targets = {"gate", "*.experts.*", "*shared*"}, .rank = 3};
     }},
    {"ep 4 over tp 2 and cp 2, exchanged",
     4,
     {"llm.ep_cp", "llm.tp"},
     [](TinyRunOptions& run) {
       use_cp(run, "ring", 2);
       run.config_json = with_experts(tiny_llava_config(), 8);
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       run.deck.meshes["llm"].ep = 4;
       run.deck.meshes["llm"].etp = 1;
       run.deck.meshes["llm"].ep_dispatch = "alltoall";
     },
     {1, 0, 2},
     {"llm.ep_cp"}},
    {"tied, one KV head, tp 2 of two replicas",
     4,
     {"llm.tp", "llm.kv_holders", "llm.dp_replicate+dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       run.config_json = tiny_llava_config({.tied = true, .kv_heads = 1});
       run.deck.meshes["llm"].tp = 2;
     }},
    {"cp 2, images see all of themselves",
     2,
     {"llm.cp_outer"},
     [](TinyRunOptions& run) {
       use_cp(run, "allgather_kv", 2);
       run.deck.llm.image_attention = "bidirectional";
     }},
    {"cp 2, ring, windows in every other layer",
     2,
     {"llm.cp_outer"},
     [](TinyRunOptions& run) {
       use_cp(run, "ring", 2);
       run.remake = mix_windows;
     }},
    {"cp 3, ring", 3, {"llm.cp_outer"}, [](TinyRunOptions& run) { use_cp(run, "ring", 3); }},
    {"cp 2, ulysses",
     2,
     {"llm.cp_inner", "vision.cp_inner"},
     [](TinyRunOptions& run) { use_cp(run, "ulysses", 2); }},
    {"cp 4, ulysses in groups of two, a ring between them",
     4,
     {"llm.cp_inner", "llm.cp_outer"},
     [](TinyRunOptions& run) {
       use_cp(run, "ulysses_ring", 4);
       run.deck.meshes["vision"].cp_ulysses_ranks = run.deck.meshes["llm"].cp_ulysses_ranks = 2;
     }},
    {"tp 2 x cp 2, vision dealt to all ranks",
     4,
     {"llm.tp", "llm.cp_outer", "llm.encoder_dp+cp+tp",
      "vision.dp_replicate+dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       run.deck.meshes["llm"].tp = run.deck.meshes["llm"].cp = 2;
       run.deck.meshes["llm"].cp_block = 8;
     }},
    {"images and sound, tp 2 of llm and audio, vision dealt",
     2,
     {"llm.tp", "audio.tp"},
     [](TinyRunOptions& run) {
       run.config_json = tiny_llava_config({.audio = true});
       run.deck.meshes["llm"].tp = run.deck.meshes["audio"].tp = 2;
     }},
    {"sound, cp 2",
     2,
     {"llm.cp_outer", "audio.cp_outer"},
     [](TinyRunOptions& run) {
       run.config_json = tiny_llava_config({.audio = true});
       use_cp(run, "allgather_kv", 2);
       run.deck.meshes["audio"] = run.deck.meshes["vision"];
     }},
    {"vision on a rank of its own, two stages, bf16",
     3,
     {"vision.pp0>llm.pp0 outputs", "vision.pp0>llm.pp0 gradients", "llm.pp0>llm.pp1 outputs",
      "llm.pp0>llm.pp1 gradients"},
     [](TinyRunOptions& run) {
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["vision"].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
       run.deck.precision.preset = "bf16";
     }},
    {"tp 2 of all, features of frozen vision kept",
     2,
     {"llm.tp", "vision.tp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.tp = 2; });
       keep_features(run);
     }},
    {"full_shard, features of frozen vision kept",
     4,
     {"llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) { mesh.strategy = "full_shard"; });
       keep_features(run);
     }},
    {"vision on a rank of its own, which reads its features",
     3,
     {"vision.pp0>llm.pp0 outputs", "vision.pp0>llm.pp0 gradients"},
     [](TinyRunOptions& run) {
       run.deck.mesh.placement = "disjoint";
       run.deck.meshes["vision"].encoder_dp = 1;
       run.deck.meshes["llm"].pp = 2;
       keep_features(run);
     }},
    {"two stages of tp 2, tied embeddings, weight gradients put off",
     4,
     {"llm.tp", "llm.tied", "llm.pp0>llm.pp1 outputs"},
     [](TinyRunOptions& run) {
       run.config_json = tiny_llava_config({.tied = true});
       run.deck.meshes["llm"].tp = run.deck.meshes["llm"].pp = 2;
       run.deck.mesh.schedule = "zero_bubble";
     }},
    {"two stages of two replicas, gathered for each use",
     4,
     {"llm.dp_shard+encoder_dp+cp", "llm.pp0>llm.pp1 outputs"},
     [](TinyRunOptions& run) {
       run.deck.meshes["llm"].pp = 2;
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.strategy = "full_shard";
         mesh.reshard_after_forward = AutoOption::of(true);
       });
     }},
    {"tp 2 x full_shard 2, bf16",
     4,
     {"llm.tp", "llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.strategy = "full_shard";
       });
       run.deck.precision.preset = "bf16";
     }},
    {"Muon on tp 2 x full_shard 2, bf16",
     4,
     {"llm.tp", "vision.tp", "llm.dp_shard+encoder_dp+cp"},
     [](TinyRunOptions& run) {
       run.deck.optim.kind = "muon";
       each(run, [](ModuleMeshOptions& mesh) {
         mesh.tp = 2;
         mesh.strategy = "full_shard";
       });
       run.deck.precision.preset = "bf16";
     }},
    {"Muon on hybrid_shard, the encoder frozen",
     4,
     {"llm.dp_shard+encoder_dp+cp", "llm.dp_replicate"},
     [](TinyRunOptions& run) {
       run.deck.optim.kind = "muon";
       run.deck.encoders["vision"].train = false;
       run.deck.mesh.dp_replicate = 2;
       each(run, [](ModuleMeshOptions& mesh) { mesh.strategy = "hybrid_shard"; });
     }},
    {"Muon on two stages of two replicas",
     4,
     {"llm.dp_replicate+dp_shard+encoder_dp+cp", "llm.pp0>llm.pp1 outputs"},
     [](TinyRunOptions& run) {
       run.deck.optim.kind = "muon";
       run.deck.meshes["llm"].pp = 2;
     }},
};

TEST(CountedTraffic, CountedEqualsTheFormula) {
  const Communicator world = testing::world().communicator();
  for (const TrafficLayout& layout : kLayouts) expect_counted_traffic(world, layout);
}

TEST(CountedTraffic, OfGroupsWithTheSameRanksIsCountedSeparately) {
  const Communicator part = testing::first_ranks(2);
  if (part.size() == 0) return;
  const MeshShape shape{1, 1, {{.module = "vision", .tp = 2}, {.module = "llm", .tp = 2}}, {}};
  Mesh mesh(part, shape, make_host_collectives);
  std::vector<float> data(10, 1.0f);

  mesh.along("llm", {Axis::Tp}).all_reduce(data.data(), 10, DType::Float32, ReduceOp::Sum).wait();
  mesh.along("vision", {Axis::Tp}).broadcast(data.data(), 4, DType::Float32, 0).wait();

  const Traffic traffic = mesh.traffic();
  EXPECT_EQ(traffic.at("llm.tp"), 40);
  EXPECT_EQ(traffic.contains("vision.tp"), mesh.rank() == 0);
  EXPECT_EQ(traffic.size(), mesh.rank() == 0 ? 2u : 1u);
}

}  // namespace
}  // namespace zea::testing::test_counted_traffic
