// SPDX-License-Identifier: Apache-2.0
// Dropout of residual paths and embeddings: at the rates that deck and config name, where
// transformers' GPT-2 and Phi-3 have it.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include "batch/make_microbatch.hpp"
#include "model/unit.hpp"
#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/kernel_test.hpp"

namespace zea::test_residual_dropout {
namespace {

using testing::expect_refusal;
using testing::refusal_of;

constexpr double kRate = 0.3;
constexpr int64_t kTokens = 200, kWidth = 64;

nlohmann::json config_of(const std::string& family, const nlohmann::json& keys = {}) {
  nlohmann::json config = {{"model_type", family}};
  if (!keys.is_null()) config.update(keys);
  return config;
}

/// The rates of residual paths and of embeddings, and the notes on them.
struct Rates {
  double residual, embedding;
  std::vector<std::string> notes;
  bool operator==(const Rates&) const = default;
};

Rates rates_of(const nlohmann::json& config, std::optional<double> asked,
               RunMode mode = RunMode::Train) {
  Options deck;
  deck.run.mode = mode;
  deck.llm.dropout = asked;
  const ModelSpec model = model_of(deck, config.dump());
  const DecoderSpec& decoder = model.decoder;
  EXPECT_EQ(model.has_dropout("llm"), decoder.block.dropout > 0 || decoder.embedding_dropout > 0);
  return {decoder.block.dropout, decoder.embedding_dropout, model.notes};
}

TEST(ResidualDropout, IsWhatTheDeckAsksFor) {
  const std::string attention =
      "the config's dropout of attention (attn_pdrop = 0.1) is left out: fused attention kernels "
      "drop no probabilities";
  const std::string left_out =
      "the config's dropout (resid_pdrop = 0.1, embd_pdrop = 0) is left out; model.llm.dropout = "
      "\"auto\" trains with it";
  const nlohmann::json gpt2 = config_of("gpt2", {{"embd_pdrop", 0}});
  EXPECT_EQ(rates_of(gpt2, Options{}.llm.dropout), (Rates{0, 0, {attention, left_out}}));
  EXPECT_EQ(rates_of(gpt2, {}), (Rates{0.1, 0, {attention}}));
  EXPECT_EQ(rates_of(gpt2, 0.2), (Rates{0.2, 0.2, {attention}}));
  EXPECT_EQ(rates_of(gpt2, 0, RunMode::Evaluate), (Rates{0, 0, {attention}}));
  EXPECT_EQ(rates_of(gpt2, 0.2, RunMode::Evaluate), (Rates{0, 0, {attention}}));
}

TEST(ResidualDropout, IsThatOfPhi3WhichDropsNoEmbeddings) {
  const nlohmann::json phi3 =
      config_of("phi3", {{"resid_pdrop", 0.2}, {"embd_pdrop", 0.3}, {"num_hidden_layers", 1}});
  EXPECT_EQ(rates_of(phi3, {}), (Rates{0.2, 0, {}}));
}

TEST(ResidualDropout, SaysWhereAConfigNamesNone) {
  const nlohmann::json none =
      config_of("gpt2", {{"resid_pdrop", 0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0}});
  EXPECT_EQ(rates_of(none, 0), (Rates{0, 0, {}}));
  EXPECT_EQ(
      rates_of(none, {}),
      (Rates{0,
             0,
             {"model.llm.dropout = \"auto\" drops nothing: the config names no resid_pdrop or "
              "embd_pdrop"}}));
  EXPECT_EQ(rates_of(config_of("llama", {{"num_hidden_layers", 1}}), 0.2), (Rates{0.2, 0.2, {}}));
}

TEST(ResidualDropout, RefusesWhatIsNoRate) {
  expect_refusal(refusal_of(config_of("gpt2", {{"resid_pdrop", 1}})),
                 "config.resid_pdrop = 1; allowed: 0 or more, below 1");
  expect_refusal(refusal_of(config_of("gpt2", {{"embd_pdrop", -0.1}})), "config.embd_pdrop = -0.1");
  expect_refusal(refusal_of(config_of("phi3", {{"resid_pdrop", "0"}})), "config.resid_pdrop = ");
  expect_refusal(refusal_of(config_of("gpt2", {{"attn_pdrop", 0.3}})),
                 "config.attn_pdrop = 0.3; allowed: 0, or 0.1, which every GPT-2 has");
}

/// A GPT-2 whose embeddings are 1, whose attention adds 1 and whose MLP adds 10, all by biases.
class DroppedRows : public testing::KernelTest<> {
 protected:
  struct Made {
    at::Tensor value;
    std::map<std::string, at::Tensor> gradients;  ///< of the sum of `value`, by role
  };

  Microbatch microbatch(std::optional<int64_t> trained_step) const {
    LoadedMicrobatch loaded;
    Sample& sample = loaded.samples.emplace_back();
    sample.tokens.assign(kTokens, 5);
    sample.loss_mask.assign(kTokens, 1);
    return make_microbatch(loaded, model_,
                           {.dtype = at::kDouble, .seed = 3, .trained_step = trained_step});
  }

  /// Returns the unit's output without its inputs: the rows that it embeds, or adds.
  Made run(const std::string& name, std::optional<int64_t> step) const {
    const UnitSpec& unit = *std::ranges::find(model_.units, name, &UnitSpec::name);
    std::vector<std::unique_ptr<Parameter>> parameters;
    std::vector<Parameter*> list;
    for (size_t i = 0; i < unit.params.size(); ++i) {
      const ParamSpec& spec = model_.params[unit.params[i]];
      const std::string& role = unit.roles[i];
      const double value = role == "vocabulary" || role == "out.bias" ? 1
                           : role == "down.bias"                      ? 10
                                                                      : 0;
      parameters.push_back(std::make_unique<Parameter>(spec.name, spec.shape, true, at::kCPU));
      parameters.back()->set_value(at::full(spec.shape, value, at::kDouble));
      parameters.back()->set_gradient(at::zeros(spec.shape, at::kDouble));
      list.push_back(parameters.back().get());
    }
    UnitInputs inputs;
    for (size_t i = 0; i < unit.inputs.size(); ++i) {
      inputs.emplace_back(at::zeros({kTokens, kWidth}, at::kDouble));
      inputs.back()->set_requires_grad(true);
    }
    const Microbatch read = microbatch(step);
    Made made;
    made.value = run_unit({model_, unit, list, inputs, read, HeadOutput::Loss, Layers()}).value;
    torch::autograd::backward({made.value}, {at::ones_like(made.value)});
    for (size_t i = 0; i < list.size(); ++i) made.gradients[unit.roles[i]] = list[i]->gradient();
    return made;
  }

  const ModelSpec model_ = make_model_spec(config_of("gpt2", {{"n_embd", kWidth},
                                                              {"n_layer", 2},
                                                              {"n_head", 4},
                                                              {"n_positions", kTokens},
                                                              {"vocab_size", 9}})
                                               .dump(),
                                           {.dropout = kRate});
};

at::Tensor kept_by_attention(const at::Tensor& change) {
  return (change * (1 - kRate)).round().remainder(10) == 1;
}

at::Tensor kept_by_mlp(const at::Tensor& change) {
  return change * (1 - kRate) > 5;
}

double share(const at::Tensor& mask) {
  return mask.to(at::kDouble).mean().item<double>();
}

/// Each of them is kept at the rate, independently.
void expect_independent(const std::vector<at::Tensor>& masks) {
  const double kept = 1 - kRate;
  for (size_t i = 0; i < masks.size(); ++i) {
    EXPECT_NEAR(share(masks[i]), kept, 0.02) << i;
    for (size_t j = 0; j < i; ++j)
      EXPECT_NEAR(share(masks[i].logical_and(masks[j])), kept * kept, 0.02) << i << ", " << j;
  }
}

TEST_F(DroppedRows, AreOthersInEachHalfLayerAndStep) {
  const at::Tensor embedded = run("llm.embed", 4).value, first = run("llm.layers.0", 4).value,
                   second = run("llm.layers.1", 4).value, later = run("llm.layers.0", 5).value;
  expect_independent({embedded > 0, kept_by_attention(first), kept_by_mlp(first),
                      kept_by_attention(second), kept_by_mlp(second), kept_by_attention(later),
                      kept_by_mlp(later)});
  EXPECT_TRUE(at::equal(first, run("llm.layers.0", 4).value));
}

TEST_F(DroppedRows, KeepTheMean) {
  for (const auto& [name, mean] : {std::pair("llm.embed", 1.), {"llm.layers.0", 11.}}) {
    const at::Tensor without = run(name, {}).value, with = run(name, 0).value;
    EXPECT_TRUE(at::equal(without, at::full_like(without, mean)));
    EXPECT_NEAR(with.mean().item<double>(), mean, 0.02 * mean);
  }
}

TEST_F(DroppedRows, AreThoseWithoutAGradient) {
  const Made made = run("llm.layers.0", 0), embedded = run("llm.embed", 0);
  const auto expected = [](const at::Tensor& kept) {
    return kept.to(at::kDouble).sum(0) / (1 - kRate);
  };
  EXPECT_TRUE(at::allclose(made.gradients.at("out.bias"), expected(kept_by_attention(made.value))));
  EXPECT_TRUE(at::allclose(made.gradients.at("down.bias"), expected(kept_by_mlp(made.value))));
  EXPECT_TRUE(
      at::allclose(embedded.gradients.at("vocabulary").select(0, 5), expected(embedded.value > 0)));
}

}  // namespace
}  // namespace zea::test_residual_dropout
