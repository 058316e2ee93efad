// SPDX-License-Identifier: Apache-2.0
// Losses and biases of routers in plans: they are accepted where they have an effect, with a note
// of their cost, and refused elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "spec/adapters.hpp"
#include "support/measured_models.hpp"

namespace zea::test_router_rules {
namespace {

using Lines = std::vector<std::string>;

class RouterRules : public ::testing::Test {
 protected:
  /// The faults of a plan, or nothing.
  std::string faults() {
    const std::string config = with_adapters(config_.dump(), options_);
    try {
      notes_ = make_plan(options_, model_of(options_, config), config, 1).notes;
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  }
  void use(const std::string& family) {
    config_ = nlohmann::json::parse(testing::measured_model(family).config);
  }
  bool notes_a_second_forward() const {
    return std::ranges::any_of(notes_, [](const std::string& note) {
      return note.find("runs its forward twice") != std::string::npos;
    });
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  nlohmann::json config_ = nlohmann::json::parse(testing::measured_model("qwen3_moe").config);
  Options options_;
  Lines notes_;
};

TEST_F(RouterRules, LossesTrainAdaptersOfRoutersAndOfLayersBefore) {
  options_.llm.router_aux_loss_coef = 0.01;
  options_.llm.router_z_loss_coef = 0.01;
  for (const Lines& targets : {Lines{}, Lines{"mlp.gate", "q_proj"}, Lines{"q_proj"}}) {
    options_.llm.lora.targets = targets;
    EXPECT_EQ(faults(), "");
    EXPECT_TRUE(notes_a_second_forward());
  }
}

TEST_F(RouterRules, TheCoefficientOfAConfigIsNotedToo) {
  config_["output_router_logits"] = true;
  options_.llm.lora.targets = {"q_proj"};
  EXPECT_EQ(faults(), "");
  EXPECT_TRUE(notes_a_second_forward());
}

TEST_F(RouterRules, BiasesOfFrozenRoutersAreRefused) {
  use("glm4_moe");
  options_.optim.router_bias_update_rate = 1e-3;
  EXPECT_EQ(faults(), "");
  // Adapter files have no biases.
  for (const char* target : {"q_proj", "mlp.gate"}) {
    options_.llm.lora.targets = {target};
    EXPECT_TRUE(contains(faults(),
                         "optim.router_bias_update_rate = 0.001, but the routers of the "
                         "language model are frozen; leave it out"))
        << faults();
  }
}

TEST_F(RouterRules, LossesThatTrainNoLayerAreRefused) {
  options_.optim.frozen = {"model.embed_tokens.weight", "model.layers.*"};
  EXPECT_EQ(faults(), "");
  options_.llm.router_aux_loss_coef = 0.01;
  options_.llm.router_z_loss_coef = 0.02;
  for (const std::string key : {"router_aux_loss_coef = 0.01", "router_z_loss_coef = 0.02"})
    EXPECT_TRUE(contains(faults(), "model.llm." + key +
                                       ", but the routers of the language model and all layers "
                                       "before them are frozen; leave it out"))
        << faults();
  options_.optim.frozen = {"*.mlp.gate.weight"};  // the layers before them train
  EXPECT_EQ(faults(), "");
}

TEST_F(RouterRules, AuxiliaryLossesOfSigmoidRoutersAreRefused) {
  for (const char* family : {"glm4_moe", "deepseek_v3"}) {
    use(family);
    options_.llm.router_aux_loss_coef = 0.01;
    options_.llm.router_z_loss_coef = 0.02;
    EXPECT_TRUE(contains(faults(), "model.llm.router_aux_loss_coef = 0.01, but the model (" +
                                       std::string(family) +
                                       ") has no experts scored by a softmax; leave it out"))
        << faults();
    options_.llm.router_aux_loss_coef = 0;
    EXPECT_EQ(faults(), "");
    EXPECT_FALSE(notes_a_second_forward());
  }
}

TEST_F(RouterRules, WaitsOfTheHostForRoutersAreNotedForGpus) {
  const auto notes = [&](DeviceKind device, const char* preset, int64_t rank) {
    options_.run.device = device;
    options_.precision.preset = preset;
    options_.llm.lora = {};
    if (rank > 0) options_.llm.lora = {.targets = {"*experts*"}, .rank = rank};
    EXPECT_EQ(faults(), "");
    std::string all;
    for (const std::string& note : notes_) all += note + "\n";
    return all;
  };
  const std::string waits = ": on a GPU the host waits for the router in each mixture";
  EXPECT_TRUE(contains(notes(DeviceKind::Cuda, "fp32", 0), "experts in fp32" + waits));
  EXPECT_TRUE(contains(notes(DeviceKind::Cuda, "bf16", 4),
                       "model.llm.lora gives experts adapters of rank 4" + waits));
  EXPECT_FALSE(contains(notes(DeviceKind::Cuda, "bf16", 8), waits));
  EXPECT_FALSE(contains(notes(DeviceKind::Cuda, "bf16", 0), waits));
  EXPECT_FALSE(contains(notes(DeviceKind::Cpu, "fp32", 4), waits));
}

}  // namespace
}  // namespace zea::test_router_rules
