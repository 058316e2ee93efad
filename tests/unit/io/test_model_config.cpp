// SPDX-License-Identifier: Apache-2.0
// The files next to a config.json that define the preprocessing of images.
#include "io/model_files.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spec/model_spec.hpp"
#include "support/files.hpp"

namespace zea::test_model_config {
namespace {

using Json = nlohmann::json;

class ModelConfig : public ::testing::Test {
 protected:
  void SetUp() override { write("config.json", R"({"model_type": "x"})"); }
  void write(const std::string& name, const std::string& text) {
    write_bytes(directory_ / name, text);
  }
  std::string config() const { return read_model_config(directory_ / "config.json"); }
  Json processor() const { return Json::parse(config()).value(kImageProcessor, Json()); }

  TemporaryDirectory directory_;
};

TEST_F(ModelConfig, IsAsItStandsWithoutThem) {
  EXPECT_EQ(config(), R"({"model_type": "x"})");
  write("processor_config.json", R"({"patch_size": 14})");
  EXPECT_EQ(config(), R"({"model_type": "x"})");
}

TEST_F(ModelConfig, TakesTheWholeProcessorsFirst) {
  write("preprocessor_config.json", R"({"size": 1})");
  EXPECT_EQ(processor(), Json({{"size", 1}}));
  write("processor_config.json", R"({"image_processor": {"size": 2}})");
  EXPECT_EQ(processor(), Json({{"size", 2}}));
}

TEST_F(ModelConfig, LeavesTheAudioProcessor) {
  write("preprocessor_config.json", R"({"feature_size": 80, "sampling_rate": 16000})");
  EXPECT_TRUE(processor().is_null());
  EXPECT_EQ(Json::parse(config()).at(kFeatureExtractor).size(), 2U);
}

/// As Qwen2.5-Omni is published.
TEST_F(ModelConfig, SplitsImagesAndAudioOfOneFile) {
  write("preprocessor_config.json",
        R"({"feature_size": 80, "chunk_length": 300, "image_mean": [0, 0, 0], "patch_size": 14})");
  EXPECT_EQ(processor(), Json({{"image_mean", {0, 0, 0}}, {"patch_size", 14}}));
  EXPECT_EQ(Json::parse(config()).at(kFeatureExtractor),
            Json({{"feature_size", 80}, {"chunk_length", 300}}));
}

/// transformers saves a loaded config with the keys of both processors in each section.
TEST_F(ModelConfig, SplitsImagesAndAudioOfEachPart) {
  write("processor_config.json", R"({
    "image_processor": {"image_mean": [0, 0, 0], "patch_size": 14, "feature_size": 80},
    "feature_extractor": {"feature_size": 80, "chunk_length": 300, "image_mean": [0, 0, 0]}})");
  EXPECT_EQ(processor(), Json({{"image_mean", {0, 0, 0}}, {"patch_size", 14}}));
  EXPECT_EQ(Json::parse(config()).at(kFeatureExtractor),
            Json({{"feature_size", 80}, {"chunk_length", 300}}));
}

TEST_F(ModelConfig, TakesWhatEndsATextOfTheGenerationConfig) {
  write("generation_config.json", R"({"temperature": 0.6, "eos_token_id": [2, 7]})");
  EXPECT_EQ(Json::parse(config()),
            Json::parse(R"({"model_type": "x", "generation_config": {"eos_token_id": [2, 7]}})"));
  write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_EQ(config(), R"({"model_type": "x"})");
}

TEST_F(ModelConfig, LeavesOutHowItsFilesAreQuantized) {
  write("config.json", R"({"model_type": "x", "quantization_config": {"quant_method": "fp8"}})");
  EXPECT_EQ(config(), R"({"model_type":"x"})");
  EXPECT_EQ(read_quantization(directory_ / "config.json")->columns, 128);
}

/// Lists within lists overrun the stack of what prints them, or take their square of spaces.
TEST_F(ModelConfig, RefusesQuantizedOnesOfAnyDepthOrWithAKeyTwice) {
  constexpr size_t kDepth = 100000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  const std::string fp8 = R"({"quantization_config": {"quant_method": "fp8")";
  const std::pair<std::string, const char*> cases[] = {
      {fp8 + R"(, "weight_block_size": )" + deep + "}}", "JSON is nested too deeply"},
      {fp8 + R"(}, "x": )" + deep + "}", "JSON is nested too deeply"},
      {fp8 + R"(}, "x": 1, "x": 2})", "JSON has the key \"x\" twice"}};
  for (const auto& [text, reason] : cases) {
    write("config.json", text);
    for (const std::string& message : {error_of([&] { config(); }), error_of([&] {
                                         read_quantization(directory_ / "config.json");
                                       })})
      EXPECT_TRUE(contains(message, "config.json: " + std::string(reason))) << message;
  }
}

TEST_F(ModelConfig, NamesADamagedFile) {
  write("preprocessor_config.json", "{");
  EXPECT_TRUE(contains(error_of([&] { config(); }), "preprocessor_config.json"));
}

}  // namespace
}  // namespace zea::test_model_config
