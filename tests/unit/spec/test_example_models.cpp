// SPDX-License-Identifier: Apache-2.0
// The configs in inputs/ have as many parameters as the published models.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "spec/model_spec.hpp"

namespace zea::test_example_models {
namespace {

ModelSpec model_of(const std::string& name) {
  std::ifstream file(std::string(ZEA_INPUTS) + "/" + name);
  return make_model_spec({std::istreambuf_iterator<char>(file), {}});
}

/// Elements of the parameters and of the buffers in files, most of them counted by transformers.
struct Example {
  const char* name;
  int64_t parameters, buffers = 0;
};

TEST(ExampleModels, HaveTheParametersOfThePublishedOnes) {
  // Gemma 4 has a scale of each layer, four bounds of each clipped linear (7 in a block of the
  // vision encoder, 10 in one of the audio encoder), and two vectors that standardize features.
  const Example examples[] = {
      {"gpt2_124m.json", 124439808},
      {"llama31_8b.json", 8030261248},
      {"llama31_70b.json", 70553706496},
      {"qwen3_8b.json", 8190735360},
      {"llava_15_7b.json", 7063427072},
      {"internvl3_5_30b_a3b.json", 30848730112},
      {"gemma4_31b.json", 30697345280, 60},
      {"gemma4_31b_images.json", 31273086512, 60 + 2 * 1152},
      {"gemma4_26b_a4b.json", 25233141760, 30},
      {"gemma4_26b_a4b_images.json", 25805933872, 30 + 2 * 1152},
      {"gemma4_e4b.json", 7463013376, 42},
      {"gemma4_e4b_images.json", 7632344064, 42 + 4 * 16 * 7},
      {"gemma4_e4b_audio.json", 7941100832, 42 + 4 * 16 * 7 + 4 * 12 * 10},
      {"gemma3_12b.json", 12187325040},
      {"qwen2_vl_7b.json", 8291375616},
      {"qwen3_5_9b.json", 9409813744},
      {"qwen3_5_35b_a3b.json", 35107181936},
      {"qwen3_vl_30b_a3b.json", 31070754032},
      {"voxtral_mini_3b.json", 4676271104},
      {"gpt_oss_20b.json", 20914757184},
      {"moonlight_16b_a3b.json", 15960108544, 26 * 64},  // biases of 64 experts of 26 layers
      {"glm_4_1v_9b.json", 10292777472},
      {"qwen2_5_omni_7b.json", 8931813888},
      {"glm_4_5v.json", 107710927360, 45 * 128}};
  for (const auto& [name, parameters, buffers] : examples)
    EXPECT_EQ(model_of(name).num_parameters(), parameters + buffers) << name;
}

TEST(ExampleModels, HaveTheModulesOfThePublishedOnes) {
  int64_t vision = 0, llm = 0;
  const ModelSpec pair = model_of("clip_b32_llama_1b.json");
  for (const ParamSpec& param : pair.params) {
    if (param.name.starts_with("vision_tower.")) vision += num_elements(param.shape);
    if (param.name.starts_with("language_model.")) llm += num_elements(param.shape);
  }
  EXPECT_EQ(vision, 87456000);
  EXPECT_EQ(llm, 1235814400);
}

/// A token skips 120 of 128 experts in 48 layers, each of three matrices of 768 x 2048.
TEST(ExampleModels, HaveTheActiveParametersOfThePublishedOnes) {
  EXPECT_EQ(model_of("qwen3_vl_30b_a3b.json").num_active_parameters(),
            31070754032 - int64_t{48} * 120 * 3 * 768 * 2048);
}

}  // namespace
}  // namespace zea::test_example_models
