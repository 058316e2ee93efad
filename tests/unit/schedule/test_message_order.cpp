// SPDX-License-Identifier: Apache-2.0
// Outputs that later stages read as well travel over links whose messages have no names.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"

namespace zea::test_message_order {
namespace {

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

/// Nine layers, of which the last four read keys and values of the first and the fifth one.
std::string config_with(int64_t layer_input) {
  return nlohmann::json{
      {"model_type", "gemma4_text"},
      {"hidden_size", 24},
      {"intermediate_size", 40},
      {"num_hidden_layers", 9},
      {"layer_types",
       {kFull, kSliding, kSliding, kSliding, kSliding, kFull, kSliding, kFull, kFull}},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 6},
      {"global_head_dim", 8},
      {"num_kv_shared_layers", 4},
      {"hidden_size_per_layer_input", layer_input},
      {"vocab_size_per_layer_input", 64},
      {"vocab_size", 61}}
      .dump();
}

/// The first and the fifth stage, on the same ranks, make the keys; the third stage reads none.
Options eight_stages() {
  Options deck;
  deck.mesh.schedule = PipelineSchedule::Interleaved;
  ModuleMeshOptions& mesh = deck.meshes["llm"];
  mesh.virtual_stages = 2;
  mesh.stages = {{"llm.embed..llm.layers.0"},
                 {"llm.layers.1"},
                 {"llm.layers.2"},
                 {"llm.layers.3"},
                 {"llm.layers.4.keys..llm.layers.4"},
                 {"llm.layers.5"},
                 {"llm.layers.6..llm.layers.7"},
                 {"llm.layers.8..llm.head"}};
  return deck;
}

TEST(MessageOrder, RefusesStagesThatReceiveInAnotherOrder) {
  try {
    make_plan(eight_stages(), config_with(0), 4);
    FAIL() << "accepted";
  } catch (const PlanError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("mesh.llm.virtual_stages = 2 with pp = 4: what the blocks of gemma4_text read "
                  "of earlier ones would reach llm.pp2 from llm.pp0 in another order than it is "
                  "sent; use virtual_stages = 1, or another pp"),
        std::string::npos)
        << error.what();
  }
}

/// Every stage group receives something of the first stage, and its keys with it.
TEST(MessageOrder, AcceptsStagesThatReceiveInOrder) {
  const Plan plan = make_plan(eight_stages(), config_with(5), 4);
  const auto keys = std::ranges::find(plan.model.units, "llm.layers.0.keys", &UnitSpec::name);
  const auto number = static_cast<int>(keys - plan.model.units.begin());
  std::vector<std::string> receivers;
  for (const PipelineEdge& edge : edges_of(plan.pipeline, plan.model))
    if (edge.unit == number) receivers.push_back(plan.model.units[edge.receiver].name);
  EXPECT_EQ(receivers, (std::vector<std::string>{"llm.layers.1", "llm.layers.2", "llm.layers.3"}));
}

/// On a device messages that skip a stage may wait for each other, but not in GPipe, in 1F1B with
/// few stages, and with two stages.
TEST(MessageOrder, DevicesRefuseOutputsThatSkipStages) {
  const auto refusal = [](PipelineSchedule schedule, int64_t pp) -> std::string {
    Options deck;
    deck.run.device = DeviceKind::Cuda;
    deck.mesh.schedule = schedule;
    deck.meshes["llm"].pp = pp;
    try {
      make_plan(deck, config_with(5), static_cast<int>(pp));
    } catch (const PlanError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(PipelineSchedule::OneFOneB, 4), "accepted");
  EXPECT_EQ(refusal(PipelineSchedule::GPipe, 6), "accepted");
  EXPECT_EQ(refusal(PipelineSchedule::ZeroBubble, 2), "accepted");
  const std::string refused = refusal(PipelineSchedule::ZeroBubble, 3);
  EXPECT_NE(refused.find("run.device = \"cuda\" with mesh.llm.pp = 3 and mesh.schedule = "
                         "\"zero_bubble\": blocks of gemma4_text read outputs of stages before the "
                         "one before theirs"),
            std::string::npos)
      << refused;
  EXPECT_NE(refusal(PipelineSchedule::OneFOneB, 5).find("\"1f1b\" with pp up to 4"),
            std::string::npos);
}

/// The table of ids is tied between no stages, the norm of per-layer inputs between all, and the
/// embedding between the first and the last one.
TEST(MessageOrder, TiedParametersHaveStagesOfTheirOwn) {
  const Plan plan = make_plan(eight_stages(), config_with(5), 4);
  EXPECT_EQ(plan.mesh.grid("llm").tied_stages,
            (std::vector<std::vector<int>>{{0, 1, 2, 3}, {0, 3}}));
}

}  // namespace
}  // namespace zea::test_message_order
