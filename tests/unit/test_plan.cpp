// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/memory_estimate.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/tiny_llava.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using testing::tiny_llava_config;

std::string refusal(const Options& options, int world_size) {
  try {
    make_plan(options, tiny_llava_config(), world_size);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Plan, PrintsEveryFactorOfAMeshThatDoesNotFit) {
  Options options;
  options.mesh.dp_replicate = 2;
  options.mesh.dp_shard = 3;
  const std::string text = refusal(options, 4);
  for (const char* part : {"dp_replicate (2)", "dp_shard (3)", "world size 4"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, RefusesAxesThatAreNotBuiltAllAtOnce) {
  Options options;
  options.mesh_llm.tp = 2;
  options.mesh_vision.cp = 4;
  options.mesh_llm.pp = 3;
  options.mesh.placement = "disjoint";
  const std::string text = refusal(options, 4);
  for (const char* part : {"mesh.llm.tp = 2", "mesh.vision.cp = 4", "mesh.llm.pp = 3",
                           "mesh.placement = \"disjoint\""})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, RefusesToTrainNothing) {
  Options options;
  options.vision = {.train = false, .train_projector = false};
  options.llm.train = false;
  EXPECT_NE(refusal(options, 1).find("nothing to train"), std::string::npos);
}

TEST(Plan, OwnCutsOfAllRanksCoverABufferOnceUnderEveryStrategy) {
  for (const char* strategy : {"no_shard", "hybrid_shard"})
    for (int ranks : {1, 2, 3, 6})
      for (int replicate : {1, 2, 3}) {
        if (ranks % replicate != 0) continue;
        Options options;
        options.mesh.dp_replicate = replicate;
        options.mesh_llm.strategy = strategy;
        options.mesh_vision.strategy = "hybrid_shard_zero2";
        const Plan plan = make_plan(options, tiny_llava_config(), ranks);
        for (size_t g = 0; g < plan.groups.size(); ++g) {
          const int64_t end = plan.groups[g].padded(plan.shardings[g].shards);
          std::vector<int> owners(end, 0);
          for (int rank = 0; rank < ranks; ++rank) {
            const FlatRange cut = plan.own_cut(rank, static_cast<int>(g));
            const FlatRange shard = shard_range(
                plan.groups[g], plan.shard_of(rank, static_cast<int>(g)), plan.shardings[g].shards);
            EXPECT_GE(cut.begin, shard.begin);
            EXPECT_LE(cut.end, shard.end);
            EXPECT_LE(cut.end - cut.begin, end / ranks + 1);
            for (int64_t i = cut.begin; i < cut.end; ++i) ++owners[i];
          }
          EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), end)
              << strategy << " on " << ranks;
        }
      }
}

TEST(Plan, DescribesRanksUnitsAndBytes) {
  Options options;
  const std::string text = describe(make_plan(options, tiny_llava_config(), 512));
  for (const char* part : {"512 ranks = dp_replicate 1 x dp_shard 512",
                           "rank 511:", "vision.layers.1", "llm.head", "bytes per rank"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, FullShardDividesTheOwnedBytes) {
  Options options;
  const MemoryEstimate one = estimate_memory(make_plan(options, tiny_llava_config(), 1));
  const MemoryEstimate four = estimate_memory(make_plan(options, tiny_llava_config(), 4));
  EXPECT_EQ(one.gathered, 0);
  EXPECT_GT(four.gathered, 0);
  EXPECT_NEAR(static_cast<double>(four.moments) / static_cast<double>(one.moments), 0.25, 0.05);
}

/// A setting that cannot work, and the parts of the sentence that refuses it.
struct Refused {
  void (*set)(Options&);
  std::vector<std::string> words;
};

TEST(Plan, RefusesDataParallelSettingsThatDoNotGoTogether) {
  const Refused refused[] = {
      {[](Options& o) { o.mesh.dp_replicate = 2; },
       {"mesh.llm.strategy = \"full_shard\"", "mesh.vision.strategy", "dp_replicate = 2",
        "hybrid_shard"}},
      {[](Options& o) {
         o.mesh.dp_replicate = 2;
         o.mesh_llm.strategy = "shard_grad_op";
       },
       {"hybrid_shard_zero2"}},
      {[](Options& o) {
         o.mesh_llm.strategy = "shard_grad_op";
         o.mesh_llm.reshard_after_forward = AutoOption::of(true);
       },
       {"mesh.llm.reshard_after_forward", "keeps parameters gathered", "full_shard"}},
      {[](Options& o) { o.mesh_llm.reshard_after_forward = AutoOption::of_count(3); },
       {"reshard_after_forward = 3", "must divide mesh.dp_shard = 4"}},
      {[](Options& o) { o.mesh_llm.reshard_after_forward = AutoOption::of_count(4); },
       {"reshard_after_forward = 4", "smaller"}},
      {[](Options& o) {
         o.mesh_llm.forward_prefetch = o.mesh_llm.backward_prefetch = "none";
         o.mesh_llm.prefetch_depth = 2;
       },
       {"mesh.llm.prefetch_depth = 2"}},
      {[](Options& o) { o.mesh_llm.forward_prefetch = "post"; },
       {"mesh.llm.forward_prefetch = \"post\"", "prefetch_depth of 2 or more"}},
      {[](Options& o) { o.precision_vision.cast_forward_inputs = false; },
       {"precision.vision.cast_forward_inputs = false", "nothing comes to it"}},
      {[](Options& o) { o.mesh_llm.bucket_mib = 1; }, {"mesh.llm.bucket_mib", "wrap_units"}},
      {[](Options& o) {
         o.mesh_llm.strategy = "no_shard";
         o.mesh_llm.wrap_units = 2;
         o.mesh_llm.prefetch_depth = 2;
         o.mesh_llm.flatten_parameters = false;
         o.mesh_llm.forward_prefetch = "post";
         o.mesh_llm.backward_prefetch = "none";
         o.mesh_llm.reshard_after_forward = AutoOption::of(true);
         o.mesh_llm.sync_grad_accum = AutoOption::of(true);
       },
       {"mesh.llm.wrap_units", "mesh.llm.prefetch_depth", "mesh.llm.flatten_parameters",
        "mesh.llm.forward_prefetch", "mesh.llm.backward_prefetch", "mesh.llm.reshard_after_forward",
        "mesh.llm.sync_grad_accum", "no_shard"}},
      {[](Options& o) { o.mesh_llm.cpu_offload = true; },
       {"mesh.llm.cpu_offload = true", "run.device = \"cpu\"", "no GPU to offload from"}},
      {[](Options& o) {
         o.run.device = "cuda";
         o.mesh_llm.strategy = "no_shard";
         o.mesh_llm.cpu_offload = true;
       },
       {"mesh.llm.cpu_offload = true", "whole copy computes where it lies"}},
      {[](Options& o) { o.mesh_llm.pin_memory = AutoOption::of(true); },
       {"mesh.llm.pin_memory", "without cpu_offload"}},
      {[](Options& o) { o.precision.master_dtype = "bf16"; },
       {"precision.master_dtype = \"bf16\"", "lose every update"}},
      {[](Options& o) {
         o.precision.preset = "fp64";
         o.precision_llm.param_dtype = "bf16";
       },
       {"precision.llm.param_dtype = \"bf16\"", "everything is fp64"}},
      {[](Options& o) {
         o.precision_llm.param_dtype = "bf16";
         o.precision_llm.cast_forward_inputs = false;
       },
       {"precision.llm.cast_forward_inputs = false", "float32", "bfloat16"}},
  };
  for (const Refused& entry : refused) {
    Options options;
    entry.set(options);
    const std::string text = refusal(options, 4);
    for (const std::string& words : entry.words)
      EXPECT_NE(text.find(words), std::string::npos) << "no '" << words << "' in: " << text;
  }
}

TEST(Plan, AcceptsInputsThatHaveTheirTypeAlready) {
  Options options;
  options.precision.preset = "bf16";
  options.precision_vision.param_dtype = "fp32";
  options.precision_vision.output_dtype = "bf16";
  options.precision_llm.cast_forward_inputs = false;
  EXPECT_EQ(refusal(options, 4), "accepted");
}

TEST(Plan, RefusesSectionsOfAnAbsentVisionEncoder) {
  const std::string llama =
      R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 1, "vocab_size": 40})";
  Options options;
  options.mesh_vision.wrap_units = 2;
  options.precision_vision.param_dtype = "bf16";
  std::string text;
  try {
    make_plan(options, llama, 1);
  } catch (const PlanError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("[mesh.vision] is set"), std::string::npos) << text;
  EXPECT_NE(text.find("[precision.vision] is set"), std::string::npos) << text;
}

}  // namespace
}  // namespace zea
