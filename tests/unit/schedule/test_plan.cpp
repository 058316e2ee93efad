// SPDX-License-Identifier: Apache-2.0
#include "estimate/memory_estimate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "estimate/plan_notes.hpp"
#include "support/coverage.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_plan {
namespace {

using testing::tiny_llava_config;

std::string refusal(const Options& options, int world_size, const ModelSpec& model) {
  try {
    make_plan(options, model, tiny_llava_config(), world_size);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const Options& options, int world_size) {
  return refusal(options, world_size, model_of(options, tiny_llava_config()));
}

TEST(Plan, PrintsEveryFactorOfAMeshThatDoesNotFit) {
  Options options;
  options.mesh.dp_replicate = 2;
  options.mesh.dp_shard = 3;
  const std::string text = refusal(options, 4);
  for (const char* part : {"dp_replicate (2)", "dp_shard (3)", "world size 4"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, NamesTheWorldSizesThatFitModulesOnRanksOfTheirOwn) {
  Options options;
  options.meshes["vision"].pp = 2;
  options.meshes["llm"].pp = 3;
  options.mesh.placement = "disjoint";
  const std::string text = refusal(options, 12);
  for (const char* part : {"ranks of a replica (5)", "world size 12", "10 and 15"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(refusal(options, 10), "accepted");
}

TEST(Plan, RefusesToTrainNothing) {
  Options options;
  options.encoders["vision"] = {.train = false, .train_projector = false};
  options.llm.train = false;
  EXPECT_NE(refusal(options, 1).find("nothing to train"), std::string::npos);
}

TEST(Plan, RefusesCappedScoresOnADevice) {
  Options options;
  options.run.device = "cuda";
  ModelSpec model = make_model_spec(tiny_llava_config());
  EXPECT_EQ(refusal(options, 1, model), "accepted");
  model.decoder.block.attention().scores.softcap = 30;
  EXPECT_NE(refusal(options, 1, model).find("of attention of llm capped"), std::string::npos);
}

/// A layout of all axes that fits the tiny model with 4 heads, 2 of them KV heads, in the vision
/// encoder too; no more than `most` ranks.
struct RandomLayout {
  Options options;
  int ranks = 1;
};

RandomLayout random_layout(std::mt19937_64& random, int most) {
  const auto one_of = [&](std::vector<int> values) { return values[random() % values.size()]; };
  const auto strategy = [&](int replicate) -> std::string {
    const std::vector<std::string> all = {"no_shard", "hybrid_shard", "hybrid_shard_zero2",
                                          "full_shard", "shard_grad_op"};
    return all[random() % (replicate > 1 ? 3 : all.size())];
  };
  for (;;) {
    RandomLayout layout;
    Options& options = layout.options;
    options.mesh.dp_replicate = one_of({1, 2, 3});
    const int shard = one_of({1, 2, 3});
    options.meshes["llm"].tp = one_of({1, 2, 4});
    options.meshes["llm"].cp = one_of({1, 2, 3});
    options.meshes["vision"].tp = one_of({1, 2, 4});
    options.meshes["vision"].cp = one_of({1, 2, 3});
    const auto replica = static_cast<int>(options.meshes["llm"].tp * options.meshes["llm"].cp);
    const auto vision = static_cast<int>(options.meshes["vision"].tp * options.meshes["vision"].cp);
    layout.ranks = static_cast<int>(options.mesh.dp_replicate) * shard * replica;
    if (replica % vision != 0 || layout.ranks > most) continue;
    options.meshes["llm"].strategy = strategy(static_cast<int>(options.mesh.dp_replicate));
    options.meshes["vision"].strategy = strategy(static_cast<int>(options.mesh.dp_replicate));
    return layout;
  }
}

std::string random_layout_config(std::mt19937_64& random) {
  return tiny_llava_config({.tied = random() % 2 == 0,
                            .kv_heads = static_cast<int64_t>(1) << random() % 3,
                            .vision_heads = 4,
                            .vocabulary = 38 + static_cast<int64_t>(random() % 5),
                            .biases = random() % 2 == 0});
}

std::string words_of(const Plan& plan) {
  std::string words =
      std::to_string(plan.mesh.dp_replicate) + " x " + std::to_string(plan.mesh.dp_shard);
  for (const ModuleGrid& grid : plan.mesh.modules)
    words += ", " + grid.module + " encoder_dp " + std::to_string(grid.encoder_dp) + " cp " +
             std::to_string(grid.cp) + " tp " + std::to_string(grid.tp);
  return words + ", " + plan.options.meshes["llm"].strategy;
}

/// Each tp rank's pieces: its buffer is cut into as many parts as ranks hold the same pieces.
void expect_own_cuts_cover(const Plan& plan, int buffer) {
  const int64_t end = plan.buffers[buffer].padded(plan.shardings[buffer].shards);
  const int tp = plan.mesh.grid(plan.buffers[buffer].module).tp;
  std::vector<std::vector<int>> owners(tp, std::vector<int>(end, 0));
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const FlatRange cut = plan.own_range(rank, buffer);
    const FlatRange shard = shard_range(plan.buffers[buffer], plan.shard_of(rank, buffer),
                                        plan.shardings[buffer].shards);
    ASSERT_GE(cut.begin, shard.begin);
    ASSERT_LE(cut.end, shard.end);
    ASSERT_LE(cut.end - cut.begin, end * tp / plan.world_size() + 1);
    for (int64_t i = cut.begin; i < cut.end; ++i) ++owners[plan.piece_rank(rank, buffer)][i];
  }
  for (const std::vector<int>& of_tp_rank : owners)
    ASSERT_EQ(std::count(of_tp_rank.begin(), of_tp_rank.end(), 1), end);
}

TEST(Plan, OwnCutsOfAllRanksCoverEveryPieceOnceUnderEveryStrategy) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    const RandomLayout layout = random_layout(random, 24);
    const Plan plan = make_plan(layout.options, random_layout_config(random), layout.ranks);
    for (size_t g = 0; g < plan.buffers.size(); ++g) {
      expect_own_cuts_cover(plan, static_cast<int>(g));
      if (::testing::Test::HasFatalFailure()) FAIL() << words_of(plan);
    }
  }
}

/// Files and norms depend on this property.
TEST(Plan, FirstHoldersOwnEveryElementOfEveryParameterOnce) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 30; ++round) {
    const RandomLayout layout = random_layout(random, 16);
    const Plan plan = make_plan(layout.options, random_layout_config(random), layout.ranks);
    std::vector<std::vector<Extent>> boxes(plan.model.params.size());
    for (int rank = 0; rank < layout.ranks; ++rank)
      for (size_t g = 0; g < plan.buffers.size(); ++g) {
        const int buffer = static_cast<int>(g), piece_rank = plan.piece_rank(rank, buffer);
        for (const FlatPart& part : parts_in_range(plan.buffers[g], plan.own_range(rank, buffer)))
          if (plan.cuts[part.param].is_first_holder(piece_rank))
            for (PieceBox& box :
                 boxes_of_piece(plan.model.params[part.param], plan.cuts[part.param], piece_rank,
                                part.param_begin, part.param_begin + part.elements))
              boxes[part.param].push_back(std::move(box.extent));
      }
    for (size_t p = 0; p < boxes.size(); ++p)
      ASSERT_TRUE(testing::covers_exactly_once(plan.model.params[p].shape, boxes[p]))
          << plan.model.params[p].name << " of " << words_of(plan);
  }
}

TEST(Plan, DescribesRanksUnitsAndBytes) {
  Options options;
  const std::string text = describe(make_plan(options, tiny_llava_config(), 512));
  for (const char* part : {"512 ranks = dp_replicate 1 x dp_shard 512", "replica 0 of 512",
                           "vision.layers.1", "llm.head", "bytes per rank"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, PredictsEveryStageGroupAndAsManyMicrobatchesAsThereCanBe) {
  Options options;
  options.schedule.global_batch = 4;
  EXPECT_EQ(predicted_microbatches(make_plan(options, tiny_llava_config(), 1)), 2);
  EXPECT_EQ(predicted_microbatches(make_plan(options, tiny_llava_config(), 4)), 1);
  options.data.rows_per_microbatch = 4;
  EXPECT_EQ(predicted_microbatches(make_plan(options, tiny_llava_config(), 1)), 1);
  options.data.rows_per_microbatch = 1;
  options.mesh.placement = "disjoint";
  options.meshes["vision"].encoder_dp = 1;
  options.meshes["llm"].pp = 2;
  const Plan plan = make_plan(options, tiny_llava_config(), 3);
  EXPECT_EQ(predicted_microbatches(plan), 3);
  const std::string text = describe(plan);
  for (const char* part : {"with 3 microbatches of full rows", "  vision.pp0: parameters ",
                           "  llm.pp0: parameters ", "  llm.pp1: parameters "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
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
         o.meshes["llm"].strategy = "shard_grad_op";
       },
       {"hybrid_shard_zero2"}},
      {[](Options& o) {
         o.meshes["llm"].strategy = "shard_grad_op";
         o.meshes["llm"].reshard_after_forward = AutoOption::of(true);
       },
       {"mesh.llm.reshard_after_forward", "keeps parameters gathered", "full_shard"}},
      {[](Options& o) { o.meshes["llm"].reshard_after_forward = AutoOption::of_count(3); },
       {"reshard_after_forward = 3", "must divide the 4 ranks", "mesh.dp_shard = 4"}},
      {[](Options& o) { o.meshes["llm"].reshard_after_forward = AutoOption::of_count(4); },
       {"reshard_after_forward = 4", "smaller"}},
      {[](Options& o) {
         o.meshes["llm"].forward_prefetch = o.meshes["llm"].backward_prefetch = "none";
         o.meshes["llm"].prefetch_depth = 2;
       },
       {"mesh.llm.prefetch_depth = 2"}},
      {[](Options& o) { o.meshes["llm"].forward_prefetch = "post"; },
       {"mesh.llm.forward_prefetch = \"post\"", "prefetch_depth of 2 or more"}},
      {[](Options& o) { o.precisions["vision"].cast_forward_inputs = false; },
       {"precision.vision.cast_forward_inputs = false", "nothing comes to it"}},
      {[](Options& o) { o.meshes["llm"].bucket_mib = 1; }, {"mesh.llm.bucket_mib", "wrap_units"}},
      {[](Options& o) {
         o.meshes["llm"].strategy = "no_shard";
         o.meshes["llm"].wrap_units = 2;
         o.meshes["llm"].prefetch_depth = 2;
         o.meshes["llm"].flatten_parameters = false;
         o.meshes["llm"].forward_prefetch = "post";
         o.meshes["llm"].backward_prefetch = "none";
         o.meshes["llm"].reshard_after_forward = AutoOption::of(true);
         o.meshes["llm"].sync_grad_accum = AutoOption::of(true);
       },
       {"mesh.llm.wrap_units", "mesh.llm.prefetch_depth", "mesh.llm.flatten_parameters",
        "mesh.llm.forward_prefetch", "mesh.llm.backward_prefetch", "mesh.llm.reshard_after_forward",
        "mesh.llm.sync_grad_accum", "no_shard"}},
      {[](Options& o) { o.meshes["llm"].cpu_offload = true; },
       {"mesh.llm.cpu_offload = true", "run.device = \"cpu\"", "no GPU to offload from"}},
      {[](Options& o) {
         o.run.device = "cuda";
         o.meshes["llm"].strategy = "no_shard";
         o.meshes["llm"].cpu_offload = true;
       },
       {"mesh.llm.cpu_offload = true", "whole copy computes where it lies"}},
      {[](Options& o) { o.run.ranks_per_gpu = 2; },
       {"run.ranks_per_gpu = 2", "run.device = \"cpu\"", "no GPU to share"}},
      {[](Options& o) {
         o.run.device = "cuda";
         o.precision.preset = "fp64";
       },
       {"run.device = \"cuda\" with precision.preset = \"fp64\"", "use fp32 or bf16, or the CPU"}},
      {[](Options& o) { o.run.deterministic = true; },
       {"run.deterministic = true", "run.device = \"cpu\"", "the same bits"}},
      {[](Options& o) { o.meshes["llm"].pin_memory = AutoOption::of(true); },
       {"mesh.llm.pin_memory", "without cpu_offload"}},
      {[](Options& o) { o.precision.master_dtype = "bf16"; },
       {"precision.master_dtype = \"bf16\"", "lose every update"}},
      {[](Options& o) {
         o.precision.preset = "fp64";
         o.precisions["llm"].param_dtype = "bf16";
       },
       {"precision.llm.param_dtype = \"bf16\"", "everything is fp64"}},
      {[](Options& o) {
         o.precisions["llm"].param_dtype = "bf16";
         o.precisions["llm"].cast_forward_inputs = false;
       },
       {"precision.llm.cast_forward_inputs = false", "float32", "bfloat16"}},
      {[](Options& o) { o.precisions["llm"].output_dtype = "bf16"; },
       {"precision.llm.output_dtype = \"bf16\"", "no other module takes", "param_dtype"}},
  };
  for (const Refused& entry : refused) {
    Options options;
    entry.set(options);
    const std::string text = refusal(options, 4);
    for (const std::string& words : entry.words)
      EXPECT_NE(text.find(words), std::string::npos) << "no '" << words << "' in: " << text;
  }
}

TEST(Plan, TpRanksShareNoBuffers) {
  Options options;
  options.meshes["llm"].tp = 2;
  options.meshes["llm"].reshard_after_forward = AutoOption::of_count(4);
  EXPECT_NE(refusal(options, 12)
                .find("reshard_after_forward = 4 must divide the 6 ranks that share a copy"),
            std::string::npos);
}

TEST(Plan, BuffersAreCutOverTheRanksThatHoldTheSamePieces) {
  Options options;
  options.mesh.dp_shard = 2;
  options.meshes["llm"].tp = 4;
  options.meshes["llm"].cp = 2;
  options.meshes["vision"].tp = 2;
  const Plan plan = make_plan(options, tiny_llava_config({.kv_heads = 2, .vocabulary = 41}), 16);
  const int k = plan.model.param_index("language_model.model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(plan.cuts[k].holders, 2);
  EXPECT_EQ(plan.cuts[k].shape, (Shape{6, 24}));
  const int head = plan.model.param_index("language_model.lm_head.weight");
  EXPECT_EQ(plan.cuts[head].shape, (Shape{11, 24}));
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    EXPECT_EQ(plan.shardings[g].shards, plan.buffers[g].module == "llm" ? 4 : 8);
}

TEST(Plan, AcceptsInputsThatHaveTheirTypeAlready) {
  Options options;
  options.precision.preset = "bf16";
  options.precisions["vision"].param_dtype = "fp32";
  options.precisions["vision"].output_dtype = "bf16";
  options.precisions["llm"].cast_forward_inputs = false;
  EXPECT_EQ(refusal(options, 4), "accepted");
}

const char* const kTextModel =
    R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3,
        "num_attention_heads": 2, "vocab_size": 40, "tie_word_embeddings": false})";

TEST(Plan, OnlyEncodersHaveATypeOfWhatTheyGiveOut) {
  for (const std::string& config :
       {std::string(kTextModel), testing::tiny_gpt2_config(), tiny_llava_config()}) {
    Options options;
    options.precision.preset = "bf16";
    options.precisions["llm"].output_dtype = "bf16";  // as it is anyhow
    EXPECT_NO_THROW(make_plan(options, config, 1));
    options.precisions["llm"].output_dtype = "fp32";
    EXPECT_THROW(make_plan(options, config, 1), PlanError);
  }
  Options options;
  options.precisions["vision"].output_dtype = "bf16";
  EXPECT_EQ(refusal(options, 1), "accepted");
}

/// Returns the actions of every rank in a step of three microbatches.
std::vector<std::vector<Action>> all_actions(const Plan& plan) {
  const std::vector<SampleIndex> index(3 * plan.mesh.replicas(),
                                       SampleIndex{10, plan.model.has("vision") ? 1 : 0, 3});
  std::vector<int64_t> ids(index.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  const StepPlan step = plan.step_plan(0, ids, index);
  std::vector<std::vector<Action>> all;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    all.push_back(plan.rank_step(step, rank, false).schedule.actions);
  return all;
}

bool is_noted(const Plan& plan, const std::string& setting) {
  return std::ranges::any_of(unused_settings(plan), [&](const std::string& note) {
    return note.starts_with("mesh.llm." + setting + " has no effect");
  });
}

/// A setting of the language model, and the value without it.
struct Setting {
  std::string text;
  void (*set)(ModuleMeshOptions&);
  void (*unset)(ModuleMeshOptions&);
};

std::vector<Setting> prefetch_settings() {
  using Mesh = ModuleMeshOptions;
  return {
      {"prefetch_depth = 3", [](Mesh& m) { m.prefetch_depth = 3; },
       [](Mesh& m) { m.prefetch_depth = 1; }},
      {"prefetch_depth = 3 with forward_prefetch = \"none\"",
       [](Mesh& m) {
         m.prefetch_depth = 3;
         m.forward_prefetch = "none";
       },
       [](Mesh& m) { m.prefetch_depth = 1; }},
      {"backward_prefetch = \"none\"", [](Mesh& m) { m.backward_prefetch = "none"; },
       [](Mesh& m) { m.backward_prefetch = "pre"; }},
      {"backward_prefetch = \"post\"", [](Mesh& m) { m.backward_prefetch = "post"; },
       [](Mesh& m) { m.backward_prefetch = "pre"; }},
      {"forward_prefetch = \"none\"", [](Mesh& m) { m.forward_prefetch = "none"; },
       [](Mesh& m) { m.forward_prefetch = "pre"; }},
  };
}

/// Decks that differ in the buffers that stay gathered, and in how much is gathered as one; all of
/// two ranks per copy.
std::vector<Options> prefetching_decks(bool has_vision) {
  std::vector<Options> decks;
  for (const char* strategy : {"full_shard", "shard_grad_op"})
    for (int64_t wrap : {0, 1, 2})
      for (int64_t pp : {1, 2})
        for (int64_t virtual_stages : {1, 2})
          for (const char* placement : {"shared", "disjoint"}) {
            if ((pp == 1 && virtual_stages > 1) || (!has_vision && placement[0] == 'd')) continue;
            Options deck;
            deck.data.packing = false;
            deck.mesh.placement = placement;
            deck.meshes["vision"].encoder_dp = placement[0] == 'd' ? 1 : 0;
            deck.mesh.schedule = virtual_stages > 1 ? "interleaved_1f1b" : "1f1b";
            deck.meshes["llm"].strategy = strategy;
            deck.meshes["llm"].wrap_units = wrap;
            deck.meshes["llm"].pp = pp;
            deck.meshes["llm"].virtual_stages = virtual_stages;
            decks.push_back(deck);
          }
  return decks;
}

int ranks_of(const Options& deck) {
  const auto llm_ranks = static_cast<int>(deck.meshes["llm"].pp);
  return 2 * (llm_ranks + (deck.mesh.placement == ModulePlacement::Disjoint ? 1 : 0));
}

/// Nothing changes by chance, too, which is not noted: where tiny stages have too few units for a
/// depth of 3, or where one of them reads a tied embedding alone.
bool may_be_chance(const std::string& config, const Setting& setting) {
  const bool is_tied = config != kTextModel && config != tiny_llava_config();
  return is_tied || (config != kTextModel && setting.text == "prefetch_depth = 3");
}

TEST(Plan, NotesPrefetchingThatChangesNothing) {
  int idle = 0, active = 0;
  for (const std::string& config : {std::string(kTextModel), testing::tiny_gpt2_config(),
                                    tiny_llava_config(), tiny_llava_config({.tied = true})})
    for (const Options& deck : prefetching_decks(config.find("vision") != std::string::npos))
      for (const Setting& setting : prefetch_settings()) {
        Options with = deck;
        setting.set(with.meshes["llm"]);
        Options without = with;
        setting.unset(without.meshes["llm"]);
        const Plan plan = make_plan(with, config, ranks_of(deck));
        const bool changes =
            all_actions(plan) != all_actions(make_plan(without, config, ranks_of(deck)));
        const bool noted =
            is_noted(plan, setting.text) ||
            (setting.text.starts_with("prefetch_depth") && is_noted(plan, "prefetch_depth = 3"));
        EXPECT_TRUE(noted != changes || (!noted && may_be_chance(config, setting)))
            << (noted ? "noted" : "not noted") << ": " << setting.text << ", "
            << deck.meshes["llm"].strategy.name() << ", " << deck.mesh.placement.name()
            << ", wrap_units " << deck.meshes["llm"].wrap_units << ", pp " << deck.meshes["llm"].pp
            << " x " << deck.meshes["llm"].virtual_stages << ", " << config;
        ++(noted ? idle : active);
      }
  EXPECT_GT(idle, 50);
  EXPECT_GT(active, 50);
}

TEST(Plan, NotesABroadcastOfWeightsWhereThereIsOneCopy) {
  const auto is_noted = [](const char* strategy, int replicate, int ranks) {
    Options options;
    options.model.sync_module_states = true;
    options.mesh.dp_replicate = replicate;
    options.meshes["llm"].strategy = options.meshes["vision"].strategy = strategy;
    const Plan plan = make_plan(options, tiny_llava_config(), ranks);
    return std::ranges::any_of(unused_settings(plan), [](const std::string& note) {
      return note.starts_with("model.sync_module_states = true has no effect");
    });
  };
  EXPECT_TRUE(is_noted("full_shard", 1, 4));
  EXPECT_TRUE(is_noted("no_shard", 1, 1));
  EXPECT_FALSE(is_noted("no_shard", 1, 4));
  EXPECT_FALSE(is_noted("hybrid_shard", 2, 4));
}

TEST(Plan, RefusesSectionsOfAnAbsentVisionEncoder) {
  const std::string llama =
      R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 1, "vocab_size": 40})";
  Options options;
  options.meshes["vision"].wrap_units = 2;
  options.precisions["vision"].param_dtype = "bf16";
  std::string text;
  try {
    make_plan(options, llama, 1);
  } catch (const PlanError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("[mesh.vision] is set"), std::string::npos) << text;
  EXPECT_NE(text.find("[precision.vision] is set"), std::string::npos) << text;
}

TEST(Plan, RefusesSectionsOfModulesThatTheModelLacksWithThoseThatItHas) {
  Options options;
  options.meshes["thermal"];  // as it is in a deck that says nothing there but defaults
  options.precisions["audio"];
  const std::string text = refusal(options, 1);

  EXPECT_NE(text.find("[mesh.thermal] is set, but the model (llava) has no thermal encoder; leave "
                      "the section out (its modules are vision, llm)"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("audio"), std::string::npos) << text;
}

}  // namespace
}  // namespace zea::test_plan
