// SPDX-License-Identifier: Apache-2.0
// Model FLOPs of samples and steps against counts on paper, and the peak that MFU is a share of.
#include <gtest/gtest.h>

#include "estimate/describe.hpp"
#include "estimate/peak_tflops.hpp"
#include "estimate/plan_notes.hpp"
#include "schedule/plan.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/adapters.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_model_flops {
namespace {

// The tiny decoder: hidden 24, 4 query heads and 2 of keys and values of 6, intermediate 40, 2
// layers, 40 words.
constexpr double kQueriesKeysValues = 24 * 24 + 2 * 24 * 12;
constexpr double kRest = 24 * 24 + 3 * 24 * 40;
constexpr double kLayers = 2 * (kQueriesKeysValues + kRest);
constexpr double kVocabulary = 24 * 40;
/// A pair in both layers: two products of 24, forward and twice in backward.
constexpr double kPair = 2 * (2 + 4) * 2 * 24;

// The tower, per image: 4 patches of 48 values, a class token, 2 of 3 layers with 2 heads of 8 and
// an intermediate of 24; then the projector's two matrices.
constexpr double kTowerForward =
    2 * (4 * 48 * 16 + 2 * 5 * (4 * 16 * 16 + 2 * 16 * 24)) + 2 * 2 * 2 * 5 * 5 * 16;
constexpr double kProjectorOfFrozen = 4 * (4 * 16 * 24 + 6 * 24 * 24);

std::string llama_config() {
  return R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "head_dim": 6,
             "vocab_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2})";
}

double flops(const ModelSpec& model, const SampleIndex& sample,
             BidirectionalLayers bidirectional_images = BidirectionalLayers::None) {
  return sample_cost(sample, model_flops(model, bidirectional_images));
}

ModelSpec frozen_tower() {
  return make_model_spec(tiny_llava_config(), {.encoders = {{"vision", {.encoder = false}}}});
}

TEST(ModelFlops, OfALlamaAreSixTimesItsWeightsAndItsVisiblePairs) {
  const ModelSpec model = make_model_spec(llama_config());
  EXPECT_DOUBLE_EQ(flops(model, {10, {}, 7}), 6 * 10 * kLayers + 6 * 7 * kVocabulary + 55 * kPair);
}

TEST(ModelFlops, HeedTheWindow) {
  ModelSpec model = make_model_spec(llama_config());
  model.decoder.block.attention().window = 3;
  EXPECT_DOUBLE_EQ(flops(model, {10, {}, 0}), 6 * 10 * kLayers + (1 + 2 + 8 * 3) * kPair);
  EXPECT_DOUBLE_EQ(unmasked_cost({10, {}, 0}, model_flops(model, BidirectionalLayers::None)),
                   6 * 10 * kLayers + 10 * 10 * kPair);
}

TEST(ModelFlops, OfAGatedDeltaRuleAreThreeProductsWithItsStates) {
  ModelSpec model = make_model_spec(llama_config());
  mix_delta_rules(model);  // in one of the two layers: 8 key heads of 4, 16 value heads of 3
  constexpr double kLinears = 24 * (2 * 8 * 4 + 2 * 16 * 3 + 2 * 16) + 24 * 16 * 3;
  constexpr double kStates = 16 * 4 * 3;
  constexpr double kBoth = kLinears + kQueriesKeysValues + 24 * 24 + 2 * 3 * 24 * 40;
  EXPECT_DOUBLE_EQ(flops(model, {10, {}, 0}),
                   6 * 10 * kBoth + (1 + 2) * 2 * 3 * 10 * kStates + 55 * kPair / 2);
}

TEST(ModelFlops, OfAFrozenTowerAreItsForward) {
  EXPECT_DOUBLE_EQ(
      flops(frozen_tower(), {10, {1}, 3}),
      kTowerForward + kProjectorOfFrozen + 6 * 10 * kLayers + 6 * 3 * kVocabulary + 55 * kPair);
}

TEST(ModelFlops, OfATowerWhoseFeaturesWereKeptAreNone) {
  ModelSpec model = frozen_tower();
  const double all = flops(model, {10, {2}, 3});
  model.encoders[0].is_cached = true;
  EXPECT_DOUBLE_EQ(flops(model, {10, {2}, 3}), all - 2 * kTowerForward);
}

TEST(ModelFlops, OfAFrozenModelBehindWhatTrainsLackWeightGradients) {
  const ModelSpec model = make_model_spec(
      tiny_llava_config(), {.encoders = {{"vision", {.encoder = false}}}, .llm = false});
  EXPECT_DOUBLE_EQ(
      flops(model, {10, {1}, 3}),
      kTowerForward + kProjectorOfFrozen + 4 * 10 * kLayers + 4 * 3 * kVocabulary + 55 * kPair);
}

TEST(ModelFlops, OfAModelOfWhichNothingTrainsAreItsForward) {
  const ModelSpec model = make_model_spec(llama_config(), {.llm = false, .all_frozen = true});
  EXPECT_DOUBLE_EQ(flops(model, {10, {}, 7}),
                   2 * 10 * kLayers + 2 * 7 * kVocabulary + 55 * kPair / 3);
}

/// Before the first adapter nothing trains: there are no gradients of inputs.
TEST(ModelFlops, OfAdaptersAreTheirOwnAndGradientsOfInputs) {
  const ModelSpec model =
      make_model_spec(with_adapters(llama_config(), "llm", {.targets = {"q_proj"}, .rank = 3}));
  constexpr double kMatrix = 3 * 24;
  const double first = 2 * kQueriesKeysValues + 4 * kRest + 4 * kMatrix + 6 * kMatrix,
               second = 4 * (kQueriesKeysValues + kRest) + 12 * kMatrix;
  EXPECT_DOUBLE_EQ(flops(model, {10, {}, 7}),
                   10 * (first + second) + 4 * 7 * kVocabulary + 55 * kPair);
}

TEST(ModelFlops, CountWhatAnImagesFeaturesSeeBehindThem) {
  const ModelSpec model =
      make_model_spec(tiny_llava_config({.image_size = 16, .siglip = true, .gemma3 = true}));
  ASSERT_EQ(model.encoders[0].item_shape().features, 4);
  const SampleIndex sample{20, {2}, 5};
  EXPECT_NEAR(flops(model, sample, BidirectionalLayers::All),
              flops(model, sample) + 2 * (4 * 3 / 2) * kPair, 1e-3);
}

TEST(ModelFlops, OfItemsOfAnySizeFollowTheirTokens) {
  ModelSpec model = make_model_spec(tiny_llava_config({.image_size = 24, .siglip = true}));
  merge_images_of_any_size(model);
  const int64_t usual = model.encoders[0].item_shape().tokens;
  for (const int64_t times : {1, 3}) {
    double all = 0;
    const EncoderSpec& encoder = model.encoders[0];
    ItemShape item = encoder.item_shape();
    item.tokens *= times;
    item.features *= times;
    for (int u = 0; u < std::ssize(model.units); ++u)
      if (model.units[u].encoder >= 0)
        all += unit_flops(model, u, sizes_of_items(encoder, item, 1), model.units_with_gradient())
                   .total(pairs_of_items(model, model.units[u], item, 1));
    ItemList items;
    items.add(0, 1, {.tokens = times * usual});
    EXPECT_NEAR(flops(model, {0, items, 0}), all, 1e-9 * all) << times;
  }
}

Options deck() {
  Options options;
  options.data.row_tokens = 10;
  options.schedule.global_batch = 4;
  return options;
}

TEST(ModelFlops, OfAStepAreThoseOfItsSamplesOnEveryRank) {
  const Plan plan = make_plan(deck(), tiny_llava_config(), 2);
  const std::vector<SampleIndex> index{{10, {1}, 3}, {4, {}, 2}, {7, {1}, 1}, {5, {}, 5}};
  const StepPlan step = plan.step_plan(0, {0, 1, 3, 3}, index);
  const auto of = [&](size_t id) { return flops(plan.model, index[id]); };
  EXPECT_DOUBLE_EQ(step.model_flops, of(0) + of(1) + of(3) + of(3));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(plan.rank_step(step, rank).model_flops, step.model_flops) << rank;
    EXPECT_EQ(plan.rank_step(step, rank).unmasked_flops, step.unmasked_flops) << rank;
  }
  // The mask hides 45 + 6 + 10 + 10 pairs of 10, 4, 5 and 5 tokens.
  EXPECT_DOUBLE_EQ(step.unmasked_flops - step.model_flops, 71 * plan.flops_of_samples.pair);
}

/// Rows in which every token is a target.
StepSamples whole_rows(const Plan& plan) {
  StepSamples samples = synthetic_samples(plan);
  MicrobatchTokens row = samples.tokens(0);
  row.is_target.assign(row.is_target.size(), true);
  samples.index.set_targets(0, samples.index[0].tokens);
  samples.tokens = [row](int64_t) { return row; };
  return samples;
}

TEST(ModelFlops, OfAStepArePartOfThePlansText) {
  Options options = deck();
  options.run.peak_tflops = 1e-6;
  const Plan plan = make_plan(options, llama_config(), 2);
  EXPECT_EQ(4 * flops(plan.model, {10, {}, 10}),
            4 * (6 * 10 * (kLayers + kVocabulary) + 55 * kPair));
  const StepSamples samples = whole_rows(plan);
  const StepFacts facts = facts_of(plan, samples);
  const std::string text = describe_flops(plan, samples, facts);
  EXPECT_TRUE(
      text.starts_with("model FLOPs of a step (a step of made-up samples): 2.569e-06 TFLOP, on 2 "
                       "ranks of 1e-06 TFLOP/s (run.peak_tflops) 3.211 s at an MFU of 40 %\n"
                       "  the rank with most computes 1.284e-06 TFLOP of it"))
      << text;
  EXPECT_NE(describe_steps(plan, samples, facts).find(text), std::string::npos);
  options.run.mode = RunMode::Evaluate;
  const Plan evaluation = make_plan(options, llama_config(), 2);
  EXPECT_EQ(describe_flops(evaluation, samples, facts_of(evaluation, samples)), "");
  options.run.peak_tflops = 0;
  EXPECT_EQ(unused_settings(make_plan(options, llama_config(), 2)), std::vector<std::string>{});
  options.run.peak_tflops = 989;
  EXPECT_EQ(unused_settings(make_plan(options, llama_config(), 2)),
            std::vector<std::string>{"run.peak_tflops has no effect with run.mode = \"evaluate\": "
                                     "nothing is trained"});
}

TEST(PeakTflops, AreThoseOfDataSheetsByNameAndType) {
  constexpr DType kBf16 = DType::BFloat16;
  EXPECT_EQ(data_sheet_tflops("NVIDIA H100 80GB HBM3", kBf16), 989);
  EXPECT_EQ(data_sheet_tflops("NVIDIA H100 80GB HBM3", DType::Float32), 67);
  EXPECT_EQ(data_sheet_tflops("NVIDIA H100 80GB HBM3", DType::Float64), 0);
  EXPECT_EQ(data_sheet_tflops("NVIDIA H100 80GB HBM3 MIG 1g.10gb", kBf16), 0);
  EXPECT_EQ(data_sheet_tflops("NVIDIA H100 PCIe", kBf16), 756);
  EXPECT_EQ(data_sheet_tflops("NVIDIA H200", kBf16), 989);
  EXPECT_EQ(data_sheet_tflops("NVIDIA A100-SXM4-80GB", kBf16), 312);
  EXPECT_EQ(data_sheet_tflops("NVIDIA B200", kBf16), 2250);
  EXPECT_EQ(data_sheet_tflops("NVIDIA L40S", kBf16), 362);
  EXPECT_EQ(data_sheet_tflops("NVIDIA L4", kBf16), 121);
  EXPECT_EQ(data_sheet_tflops("Tesla V100-SXM2-16GB", kBf16), 0);
  EXPECT_EQ(data_sheet_tflops("", kBf16), 0);
}

TEST(PeakTflops, AreTheDecksOrThoseOfTheTypeThatAllComputeIn) {
  const std::string gpu = "NVIDIA H100 80GB HBM3";
  Options options = deck();
  options.run.device = DeviceKind::Cuda;
  options.precision.preset = "bf16";
  const auto peak = [&] { return peak_tflops(make_plan(options, tiny_llava_config(), 2), gpu); };
  EXPECT_EQ(peak(), 989);
  options.run.ranks_per_gpu = 2;
  EXPECT_EQ(peak(), 0);
  options.run.ranks_per_gpu = 1;
  options.precisions["vision"].param_dtype = DTypeOption::Fp32;
  EXPECT_EQ(peak(), 0);
  options.run.peak_tflops = 400;
  EXPECT_EQ(peak(), 400);
}

}  // namespace
}  // namespace zea::testing::test_model_flops
