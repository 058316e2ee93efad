// SPDX-License-Identifier: Apache-2.0
#include "spec/quantization.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spec/model_spec.hpp"
#include "support/files.hpp"

namespace zea::test_quantization {
namespace {

using Json = nlohmann::json;

std::optional<Quantization> found_in(const Json& quantization) {
  return quantization_of(Json{{"quantization_config", quantization}});
}

std::string refusal(const Json& quantization) {
  return error_of([&] { found_in(quantization); });
}

/// Changes of a config that are refused, and the sentence.
using Refusals = std::vector<std::pair<Json, std::string>>;

void check_refusals(const Json& config, const Refusals& refusals) {
  for (const auto& [change, reason] : refusals) {
    const std::string message = refusal(config.patch(change));
    EXPECT_TRUE(contains(message, "config.quantization_config" + reason)) << message << "\n"
                                                                          << reason;
  }
}

Json put(const std::string& path, const Json& value) {
  return {{{"op", "add"}, {"path", path}, {"value", value}}};
}

TEST(QuantizationConfig, IsAbsentOrOfAMethodThatIsNotRead) {
  EXPECT_FALSE(quantization_of(Json::object()));
  EXPECT_FALSE(quantization_of(Json::array()));
  EXPECT_FALSE(found_in(nullptr));
  EXPECT_FALSE(found_in(Json::object()));
  EXPECT_FALSE(found_in({{"quant_method", "gptq"}}));
  EXPECT_FALSE(found_in({{"quant_method", {1}}}));
}

TEST(QuantizationConfig, ReadsMxfp4) {
  const auto found = found_in({{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->format, QuantizedFormat::Mxfp4);
  EXPECT_EQ(found->columns, 32);
}

/// As DeepSeek-V3, DeepSeek-V3.1 and Qwen3 are published.
TEST(QuantizationConfig, ReadsBlocksOfFp8) {
  const Json config = {{"activation_scheme", "dynamic"},
                       {"fmt", "e4m3"},
                       {"quant_method", "fp8"},
                       {"weight_block_size", {128, 64}}};
  const auto found = found_in(config);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->format, QuantizedFormat::Fp8);
  EXPECT_EQ(found->rows, 128);
  EXPECT_EQ(found->columns, 64);
  EXPECT_TRUE(found_in(config.patch(put("/scale_fmt", "ue8m0"))));
  EXPECT_TRUE(found_in(config.patch(put("/modules_to_not_convert", {"lm_head"}))));
  EXPECT_TRUE(found_in(config.patch(put("/ignored_layers", Json::array()))));
  EXPECT_EQ(found_in({{"quant_method", "fp8"}})->columns, 128);

  check_refusals(
      config,
      {{put("/weight_block_size", nullptr), ".weight_block_size = null; allowed: the rows and "},
       {put("/weight_block_size", {128}), ".weight_block_size = [128]; allowed: the rows and "},
       {put("/weight_block_size", {128, 0}), ".weight_block_size = [128,0]; allowed"},
       {put("/weight_block_size", {128, int64_t{1} << 40}), ".weight_block_size = [128,1099"},
       {put("/weight_block_size", {"a", 1}), ".weight_block_size"},
       {put("/activation_scheme", "static"), ".activation_scheme = static; allowed: dynamic"},
       {put("/fmt", "e5m2"), ".fmt = e5m2; allowed: e4m3"},
       {put("/scale_fmt", "bf16"), ".scale_fmt = bf16; allowed: float, ue8m0"},
       {put("/modules_to_convert", {"embed"}), ".modules_to_convert = [\"embed\"] is a key"}});
}

/// As Kimi-K2.5 is published.
TEST(QuantizationConfig, ReadsInt4OfCompressedTensors) {
  const Json config = Json::parse(R"({
      "config_groups": {"group_0": {
          "input_activations": null, "output_activations": null, "targets": ["Linear"],
          "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32,
                      "num_bits": 4, "observer": "minmax", "observer_kwargs": {},
                      "strategy": "group", "symmetric": true, "type": "int"}}},
      "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"],
      "kv_cache_scheme": null, "quant_method": "compressed-tensors",
      "quantization_status": "compressed"})");
  const auto found = found_in(config);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->format, QuantizedFormat::Int4);
  EXPECT_EQ(found->rows, 1);
  EXPECT_EQ(found->columns, 32);
  const std::string weights = "/config_groups/group_0/weights/";
  EXPECT_TRUE(found_in(config.patch(put(weights + "actorder", "weight"))));
  EXPECT_TRUE(found_in(config.patch(put("/sparsity_config", Json::object()))));
  EXPECT_EQ(found_in(config.patch(put(weights + "group_size", 128)))->columns, 128);

  const std::string group = ".config_groups.group_0.", said = group + "weights.";
  const Json other = {{"targets", {"x"}}};
  check_refusals(
      config,
      {{put("/format", "float-quantized"), ".format = float-quantized; allowed: pack-quantized"},
       {put("/format", nullptr), ".format = nothing; allowed: pack-quantized"},
       {put("/quantization_status", "frozen"),
        ".quantization_status = frozen; allowed: compressed"},
       {put("/kv_cache_scheme", {{"num_bits", 8}}), ".kv_cache_scheme = {\"num_bits\":8}; allowed"},
       {put("/sparsity_config", {{"format", "x"}}),
        ".sparsity_config = {\"format\":\"x\"}; allowed"},
       {put("/config_groups/group_1", other), ".config_groups = 2 groups; allowed: one group"},
       {put("/config_groups", Json::object()), ".config_groups = 0 groups; allowed: one group"},
       {put("/config_groups", nullptr), ".config_groups = nothing; allowed: an object"},
       {put("/config_groups/group_0", other), group + "weights = nothing; allowed: an object"},
       {put("/config_groups/group_0/input_activations", {{"num_bits", 8}}),
        group + "input_activations = {\"num_bits\":8}; allowed: null"},
       {put("/config_groups/group_0/format", "nvfp4"),
        group + "format = nvfp4; allowed: pack-quan"},
       {put(weights + "num_bits", 8), said + "num_bits = 8; allowed: 4"},
       {put(weights + "type", "float"), said + "type = float; allowed: int"},
       {put(weights + "symmetric", false), said + "symmetric = false; allowed: true"},
       {put(weights + "dynamic", true), said + "dynamic = true; allowed: false"},
       {put(weights + "strategy", "channel"), said + "strategy = channel; allowed: group"},
       {put(weights + "strategy", "tensor"), said + "strategy = tensor; allowed: group"},
       {put(weights + "group_size", -1), said + "group_size = -1; allowed: 1 or more"},
       {put(weights + "group_size", nullptr), said + "group_size = 0; allowed: 1 or more"},
       {put(weights + "actorder", "group"),
        said + "actorder = \"group\"; allowed: null, \"weight\""},
       {put(weights + "block_structure", {128, 128}),
        said + "block_structure = [128,128]; allowed"},
       {put(weights + "codebook", 3), said + "codebook = 3 is a key that zea does not know"}});
}

TEST(QuantizationConfig, MayBeTheTexts) {
  const Json said = {{"quant_method", "fp8"}, {"weight_block_size", {8, 16}}};
  Json config = {{"model_type", "x"}, {"text_config", {{"quantization_config", said}}}};
  EXPECT_EQ(quantization_of(config)->columns, 16);
  EXPECT_EQ(without_quantization(config),
            Json({{"model_type", "x"}, {"text_config", Json::object()}}));
  config["quantization_config"] = said;
  EXPECT_EQ(quantization_of(config)->columns, 16);
  EXPECT_EQ(without_quantization(config),
            Json({{"model_type", "x"}, {"text_config", Json::object()}}));
  config["quantization_config"]["weight_block_size"] = {8, 8};
  EXPECT_TRUE(contains(error_of([&] { quantization_of(config); }),
                       "config.text_config.quantization_config differs from config.quantization"));
  config.erase("quantization_config");
  config["text_config"]["quantization_config"]["fmt"] = "e5m2";
  EXPECT_TRUE(contains(error_of([&] { quantization_of(config); }),
                       "config.text_config.quantization_config.fmt = e5m2"));
}

}  // namespace
}  // namespace zea::test_quantization
