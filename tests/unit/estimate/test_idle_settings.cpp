// SPDX-License-Identifier: Apache-2.0
// Settings that change nothing are named, and those that change something are not.
#include "estimate/plan_notes.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/tiny_llava.hpp"

namespace zea::test_idle_settings {
namespace {

using Notes = std::vector<std::string>;

Notes notes_of(const Options& options, int ranks) {
  return unused_settings(make_plan(options, testing::tiny_llava_config(), ranks));
}

struct Case {
  const char* setting;  ///< of the language model
  void (*set)(Options&);
  const char* why_alone;  ///< on one rank
};

ModuleMeshOptions& mesh_of(Options& options) {
  return options.meshes["llm"];
}

const char* const kNotGathered =
    "where no other rank has a shard of the module: nothing of it is gathered";
const char* const kNotShared =
    "where no other rank has a shard or a copy of the module: nothing of it is gathered or reduced";

const Case kCases[] = {
    {"mesh.llm.reshard_after_forward = false",
     [](Options& o) { mesh_of(o).reshard_after_forward = AutoOption::of(false); }, kNotGathered},
    {"mesh.llm.forward_prefetch = \"none\"",
     [](Options& o) { mesh_of(o).forward_prefetch = "none"; }, kNotGathered},
    {"mesh.llm.backward_prefetch = \"none\"",
     [](Options& o) { mesh_of(o).backward_prefetch = "none"; }, kNotGathered},
    {"mesh.llm.prefetch_depth = 4", [](Options& o) { mesh_of(o).prefetch_depth = 4; },
     kNotGathered},
    {"mesh.llm.wrap_units = 3", [](Options& o) { mesh_of(o).wrap_units = 3; }, kNotShared},
    {"mesh.llm.flatten_parameters = false",
     [](Options& o) { mesh_of(o).flatten_parameters = false; }, kNotShared},
    {"mesh.llm.sync_grad_accum = false",
     [](Options& o) { mesh_of(o).sync_grad_accum = AutoOption::of(false); }, kNotGathered},
    {"precision.llm.reduce_dtype = \"bf16\"",
     [](Options& o) { o.precisions["llm"].reduce_dtype = "bf16"; }, kNotShared},
};

TEST(IdleSettings, OfOneRankAreNamed) {
  for (const Case& of : kCases) {
    Options options;
    of.set(options);
    EXPECT_EQ(notes_of(options, 1),
              Notes{std::string(of.setting) + " has no effect " + of.why_alone});
    EXPECT_EQ(notes_of(options, 2), Notes{}) << of.setting;
  }
}

/// Where each rank has a copy gradients are reduced, but nothing is gathered.
TEST(IdleSettings, OfCopiesThatNoRanksShareAreNamed) {
  for (const Case& of : kCases) {
    Options options;
    options.mesh.dp_replicate = 2;
    options.meshes["llm"].strategy = options.meshes["vision"].strategy = "hybrid_shard";
    of.set(options);
    const Notes notes = notes_of(options, 2);
    const auto is_noted = [&](const std::string& start) {
      return std::ranges::any_of(notes,
                                 [&](const std::string& note) { return note.starts_with(start); });
    };
    EXPECT_TRUE(
        is_noted("mesh.llm.strategy = \"hybrid_shard\" has no effect where the ranks of a "
                 "copy are one (mesh.dp_shard = 1)"));
    EXPECT_EQ(is_noted(of.setting), std::string(of.why_alone) == kNotGathered) << of.setting;
    EXPECT_EQ(notes_of(options, 4), Notes{}) << of.setting;
  }
}

TEST(IdleSettings, OfAFrozenModuleAreNamed) {
  Options options;
  options.llm.train = false;
  options.meshes["llm"].sync_grad_accum = AutoOption::of(true);
  options.precisions["llm"].reduce_dtype = "bf16";
  const std::string why =
      " has no effect where nothing of the module is trained: it has no gradients";
  EXPECT_EQ(notes_of(options, 2), (Notes{"mesh.llm.sync_grad_accum = true" + why,
                                         "precision.llm.reduce_dtype = \"bf16\"" + why}));
  options.llm.train = true;
  EXPECT_EQ(notes_of(options, 2), Notes{});
}

TEST(IdleSettings, RulesOfWhatIsNotTrainedAreNamed) {
  Options options;
  options.encoders["vision"].train = false;
  options.schedule.steps = 100;
  options.optim.lr_factors = {"vision_tower.* = 0.1", "llm = 2", "llm = 1 from 100"};
  options.optim.weight_decays = {"vision_tower.*.layers.0.* = 0", "*.bias = 0 from 99"};
  const std::string frozen = " has no effect: it matches only parameters that are not trained";
  EXPECT_EQ(notes_of(options, 1),
            (Notes{"optim.lr_factors: \"vision_tower.* = 0.1\"" + frozen,
                   "optim.lr_factors: \"llm = 1 from 100\" has no effect: schedule.steps = 100 "
                   "makes no more updates than that",
                   "optim.weight_decays: \"vision_tower.*.layers.0.* = 0\"" + frozen}));
}

TEST(IdleSettings, RulesThatFreezeNothingMoreAreNamed) {
  Options options;
  options.encoders["vision"].train = false;
  options.optim.frozen = {"llm from 100", "*.lm_head.* = 0", "vision_tower.*",
                          "*.layers.0.* from 99", "*.embed_tokens.weight"};
  const auto note = [](const std::string& rule, int steps) {
    return "optim.frozen: \"" + rule +
           "\" has no effect: without it the same parameters train, in the same updates of "
           "schedule.steps = " +
           std::to_string(steps);
  };
  options.schedule.steps = 100;
  EXPECT_EQ(notes_of(options, 1), (Notes{note("llm from 100", 100), note("*.lm_head.* = 0", 100),
                                         note("vision_tower.*", 100)}));
  options.schedule.steps = 101;
  EXPECT_EQ(notes_of(options, 1), Notes{note("vision_tower.*", 101)});
}

TEST(IdleSettings, OfTrainingAreOneNoteWhereNothingTrains) {
  Options options;
  options.optim.kind = "sgd";
  options.optim.on_nonfinite = "skip";
  options.model.activation_checkpointing = AutoOption::of_count(1);
  options.meshes["llm"].sync_grad_accum = AutoOption::of(true);
  options.data.shuffle = false;
  options.checkpoint.every = AutoOption::of_count(5);
  options.run.replay_every = 10;
  options.schedule.global_batch = 4;
  EXPECT_EQ(notes_of(options, 2), Notes{});
  options.run.mode = RunMode::Evaluate;
  EXPECT_EQ(notes_of(options, 2),
            Notes{"run.replay_every, model.activation_checkpointing, mesh.llm.sync_grad_accum, "
                  "data.shuffle, "
                  "optim.kind, optim.on_nonfinite, checkpoint.every have no effect with run.mode = "
                  "\"evaluate\": nothing is trained"});
}

TEST(IdleSettings, OfAReplayNameTheErrorsThatItsOwnRanksCannotFind) {
  Options options;
  options.run.replay_every = 10;
  const auto notes = [&](int ranks) {
    return make_plan(options, testing::tiny_llava_config(), ranks).notes;
  };
  EXPECT_EQ(notes(2), Notes{});
  ASSERT_EQ(notes(1).size(), 1u);
  EXPECT_TRUE(notes(1)[0].starts_with(
      "run.replay_every = 10: no other ranks can replay a step (1 replica), so each rank repeats "
      "its own work"))
      << notes(1)[0];
}

TEST(IdleSettings, OfEvaluationAreOneNoteWhereNothingIsEvaluated) {
  Options options;
  options.data.eval = "eval.h5";
  const std::string why = " no effect with eval.every = 0: nothing is evaluated while training";
  EXPECT_EQ(notes_of(options, 2), Notes{"data.eval has" + why});
  options.eval.samples = 3;
  options.eval.generate_tokens = 8;
  EXPECT_EQ(notes_of(options, 2),
            Notes{"data.eval, eval.samples, eval.generate_tokens have" + why});
  options.eval.every = 5;
  EXPECT_EQ(notes_of(options, 2), Notes{});
  options.eval.every = 0;
  options.run.mode = RunMode::Evaluate;
  EXPECT_EQ(notes_of(options, 2), Notes{});
}

}  // namespace
}  // namespace zea::test_idle_settings
