// SPDX-License-Identifier: Apache-2.0
// Generation with kept keys is generation by the whole forward for each token: the same logits in
// fp64, and so the same tokens, of every model that grids are tried with, and of LongRoPE, which
// turns all of a sample anew once it is long. And how tokens are drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "batch/decoding.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/compared_run.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_generation {
namespace {

constexpr int64_t kTokens = 6;

/// The logits after each sample of a microbatch, by pass and sample.
using Logits = std::map<std::pair<int, int64_t>, at::Tensor>;

struct Said {
  std::string predictions;
  Logits logits;
  int64_t rows = 0;             ///< that went through the first block of the decoder
  int64_t bytes_per_token = 0;  ///< of the cache
};

Said say(TinyRunOptions options, const MemoryDataset& dataset, bool uses_kv_cache,
         int64_t stop_token = 1 << 20) {
  Said said;
  int walk = 0;
  options.deck.data.row_tokens = 4000;  // one microbatch
  options.deck.schedule.global_batch = static_cast<int64_t>(dataset.index().size());
  options.run_unit = [&](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (call.head != HeadOutput::LastLogits) return made;
    const Microbatch& microbatch = call.microbatch;
    if (call.unit.kind == UnitKind::TokenEmbed) said.rows += microbatch.tokens;
    if (call.unit.kind != UnitKind::Head) return made;
    if (microbatch.cached && microbatch.cached->is_prompt)
      said.bytes_per_token = microbatch.cached->cache->bytes() /
                             (microbatch.tokens + kTokens * std::ssize(microbatch.samples));
    for (size_t i = 0; i < microbatch.samples.size(); ++i)
      said.logits[{walk, microbatch.samples[i]}] = made.value[static_cast<int64_t>(i)].clone();
    ++walk;
    return made;
  };
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  said.predictions =
      predictions_on(alone, make_mpi_collectives, dataset, options,
                     {.generate_tokens = kTokens,
                      .stop_tokens = {stop_token},  // by default all go on to the end
                      .uses_kv_cache = uses_kv_cache});
  return said;
}

void expect_same(const TinyRunOptions& options, const MemoryDataset& dataset) {
  const Said whole = say(options, dataset, false), kept = say(options, dataset, true);
  EXPECT_EQ(kept.predictions, whole.predictions);
  EXPECT_LT(kept.rows, whole.rows / 2);
  EXPECT_EQ(kept.bytes_per_token, kv_bytes_per_token(plan_of(options, 1), 0));
  EXPECT_GT(kept.logits.size(), 4 * dataset.index().size());
  for (const auto& [of, logits] : kept.logits)
    EXPECT_LE((logits - whole.logits.at(of)).abs().max().item<double>(), 1e-10)
        << "walk " << of.first << ", sample " << of.second;
}

class KvCacheState : public ::testing::TestWithParam<int> {};

TEST_P(KvCacheState, GiveTheLogitsOfTheWholeForward) {
  const GridScenario& scenario = grid_scenarios()[GetParam()];
  const Grid one = one_rank_like({});
  expect_same(run_of(scenario, one), dataset_of(scenario, one));
}

std::string name_of(const ::testing::TestParamInfo<int>& info) {
  std::string name = grid_scenarios()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, KvCacheState,
                         ::testing::Range(0, static_cast<int>(grid_scenarios().size())), name_of);

/// Samples that go on read their own states.
TEST(StatesOfSamples, OutliveThoseThatEnd) {
  const auto scenario = std::ranges::find(
      grid_scenarios(), std::string("gated delta rules beside attention"), &GridScenario::name);
  ASSERT_NE(scenario, grid_scenarios().end());
  const Grid one = one_rank_like({});
  const TinyRunOptions options = run_of(*scenario, one);
  const MemoryDataset dataset = dataset_of(*scenario, one);
  const Said all = say(options, dataset, true);
  const auto stop = all.logits.at({1, 0}).argmax().item<int64_t>();

  const Said whole = say(options, dataset, false, stop), kept = say(options, dataset, true, stop);

  EXPECT_EQ(kept.predictions, whole.predictions);
  EXPECT_NE(kept.predictions, all.predictions);
  EXPECT_GT(kept.logits.size(), 2 * dataset.index().size());
}

/// Also where the model computes in bf16, states are sums in fp32.
TEST(StatesOfSamples, AreNotRounded) {
  const auto scenario = std::ranges::find(
      grid_scenarios(), std::string("gated delta rules beside attention"), &GridScenario::name);
  ASSERT_NE(scenario, grid_scenarios().end());
  const Grid one = one_rank_like({});
  TinyRunOptions options = run_of(*scenario, one);
  options.deck.precision.preset = "bf16";
  at::Tensor states;
  options.run_unit = [&](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    const auto& cached = call.microbatch.cached;
    if (call.unit.kind == UnitKind::Block && cached && !cached->is_prompt &&
        call.model.delta_rule(call.unit))
      states = cached->cache->memory(call.unit.name).states.clone();
    return made;
  };
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  predictions_on(alone, make_mpi_collectives, dataset_of(*scenario, one), options,
                 {.generate_tokens = kTokens, .stop_tokens = {1 << 20}});
  ASSERT_TRUE(states.defined());
  EXPECT_EQ(states.scalar_type(), at::kFloat);
  EXPECT_GT((states.to(at::kBFloat16) != states).to(at::kFloat).mean().item<double>(), 0.5);
}

/// The last three of six layers read keys and values of the second and third one: two groups in
/// addition to the first layer, which alone reads its own.
TEST(KvBytesPerToken, CountSharedKeysOnce) {
  const auto scenario = std::ranges::find(
      grid_scenarios(), std::string("Gemma 4 E4B's text, shared keys and inputs of each layer"),
      &GridScenario::name);
  ASSERT_NE(scenario, grid_scenarios().end());
  constexpr int64_t kInWindow = 2 * 4 * 6, kOfAllTokens = 2 * 1 * 8;  // keys, values of all heads
  EXPECT_EQ(kv_bytes_per_token(plan_of(run_of(*scenario, one_rank_like({})), 1), 0),
            static_cast<int64_t>(sizeof(double)) * (kInWindow + kInWindow + kOfAllTokens));
}

TEST(KeptKeysOfLongRope, AreMadeAnewWhereASampleBecomesLong) {
  const GridScenario& scenario = grid_scenarios().front();
  const Grid one = one_rank_like({});
  TinyRunOptions options = run_of(scenario, one);
  options.remake = [](ModelSpec& model) {
    RopeConfig& rope = model.decoder.block.attention().rope;
    rope.type = RopeType::LongRope;
    rope.original_max_positions = 10;
    rope.short_factors = {1, 1.5, 2};
    rope.long_factors = {2, 3, 5};
  };
  const MemoryDataset dataset = dataset_of(scenario, one);
  const Said whole = say(options, dataset, false), kept = say(options, dataset, true);
  EXPECT_EQ(kept.predictions, whole.predictions);
  for (const auto& [of, logits] : kept.logits)
    EXPECT_LE((logits - whole.logits.at(of)).abs().max().item<double>(), 1e-10);
  options.remake = nullptr;
  EXPECT_GT(kept.rows, say(options, dataset, true).rows);
}

/// Answers may come before an image or a video; generated text comes after all of them.
TEST(Prompts, EndBehindTheLastItem) {
  const auto scenario = std::ranges::find_if(grid_scenarios(), [](const GridScenario& one) {
    return std::string(one.name).find("videos") != std::string::npos;
  });
  ASSERT_NE(scenario, grid_scenarios().end());
  const Grid one = one_rank_like({});
  const MemoryDataset dataset = dataset_of(*scenario, one);
  std::vector<Sample> samples;
  bool has_answers_before = false;
  for (int64_t s = 0; s < std::ssize(dataset.index()); ++s) {
    Sample& sample = samples.emplace_back(dataset.read(s));
    if (sample.items.empty() || sample.items[0].frames == 0) continue;
    has_answers_before = true;
    sample.tokens.insert(sample.tokens.begin(), {5, 6});
    sample.loss_mask.insert(sample.loss_mask.begin(), {0, 1});
  }
  ASSERT_TRUE(has_answers_before);

  const Said said = say(run_of(*scenario, one), MemoryDataset(samples, dataset.kinds()), true);

  EXPECT_EQ(std::ranges::count(said.predictions, '\n'), std::ssize(samples));
}

/// A video of two moments, 8 positions apart, is followed by one token.
TEST(Prompts, ContinueAfterTheirLargestPosition) {
  ModelSpec model = make_model_spec(tiny_qwen2_5_vl_config());
  shrink_images(model);
  const EncoderSpec& encoder = model.encoders.front();
  Item video;
  video.frames = 4;
  video.rate = 1000;
  video.frames_per_second = 1;
  video.height = video.width = 16;
  video.shape = encoder.video_shape({16, 16}, video.frames, video.frames_per_second);
  ASSERT_EQ(video.shape.time_of(1), 8);
  Sample sample{.tokens = {5}};
  sample.tokens.insert(sample.tokens.end(), static_cast<size_t>(video.shape.features),
                       static_cast<int32_t>(encoder.video_placeholder));
  sample.tokens.push_back(6);
  sample.loss_mask.assign(sample.tokens.size(), 0);
  sample.items = {video};
  const int64_t values = video.shape.pictures() * encoder.patches().patches_of(video.shape) *
                         encoder.patches().pixels_of_patch();
  LoadedMicrobatch loaded;
  loaded.samples = {sample};
  loaded.values = {std::vector<float>(static_cast<size_t>(values))};
  loaded.items = list_items(sample.items);

  zea::KvCacheState keys;
  make_prompt_microbatch(loaded, model, {}, 1, keys);

  const float expected = 1 + 8 + 1 - static_cast<float>(sample.tokens.size());
  EXPECT_EQ(keys.samples.at(0).rope_delta, (TokenPosition{expected, expected, expected}));
}

TEST(DrawnNumbers, DependOnSeedSampleAndPlace) {
  std::set<double> numbers;
  double sum = 0;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (int64_t sample = 0; sample < 10; ++sample)
      for (int64_t place = 0; place < 10; ++place) {
        const double number = drawn_number(seed, sample, place);
        EXPECT_GE(number, 0);
        EXPECT_LT(number, 1);
        sum += number;
        numbers.insert(number);
      }
  EXPECT_EQ(numbers.size(), 1000);
  EXPECT_NEAR(sum / 1000, 0.5, 0.03);
  EXPECT_EQ(drawn_number(3, 4, 5), drawn_number(3, 4, 5));
}

/// All tokens are equally likely, so they follow the drawn numbers alone.
TEST(DrawnNumbers, AreThoseOfEachPlaceOfASample) {
  const GridScenario& scenario = grid_scenarios().front();
  const Grid one = one_rank_like({});
  TinyRunOptions options = run_of(scenario, one);
  options.run_unit = [](const UnitArguments& call) {
    UnitOutput made = run_unit(call);
    if (call.unit.kind == UnitKind::Head && call.head == HeadOutput::LastLogits)
      made.value = at::zeros_like(made.value);
    return made;
  };
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  std::istringstream lines(predictions_on(
      alone, make_mpi_collectives, dataset_of(scenario, one), options,
      {.generate_tokens = kTokens, .sampling = {.temperature = 1}, .stop_tokens = {1 << 20}}));
  std::set<std::string> texts;
  size_t most = 0;
  int64_t samples = 0;
  for (std::string line; std::getline(lines, line); ++samples) {
    const auto text = nlohmann::json::parse(line).at("generated").get<std::string>();
    std::istringstream words(text);
    const std::set<std::string> tokens{std::istream_iterator<std::string>(words), {}};
    most = std::max(most, tokens.size());
    texts.insert(text);
  }
  EXPECT_GE(most, 4U);
  EXPECT_GE(std::ssize(texts), samples - 1);
}

TEST(SampledToken, IsOneOfTheNucleus) {
  // Shares 0.5, 0.3, 0.15, 0.05 of the tokens 2, 0, 3, 1.
  const at::Tensor logits = at::tensor({0.3, 0.05, 0.5, 0.15}, at::kDouble).log();
  EXPECT_EQ(sampled_token(logits, {.temperature = 1}, 0), 2);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1}, 0.51), 0);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1}, 0.81), 3);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1}, 0.96), 1);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1, .top_p = 0.4}, 0.99), 2);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1, .top_p = 0.7}, 0.62), 2);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1, .top_p = 0.7}, 0.63), 0);
  EXPECT_EQ(sampled_token(logits, {.temperature = 1, .top_p = 0.7}, 0.999), 0);
  // Squared and shared anew: 0.25, 0.09, 0.0225, 0.0025 of 0.365.
  EXPECT_EQ(sampled_token(logits, {.temperature = 0.5}, 0.68), 2);
  EXPECT_EQ(sampled_token(logits, {.temperature = 0.5}, 0.69), 0);
}

}  // namespace
}  // namespace zea::testing::test_generation
