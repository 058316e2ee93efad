// SPDX-License-Identifier: Apache-2.0
// Quantized tensors of safetensors files, whose bytes are written here as the formats define them.
// tests/reference/check_quantized_files.py compares whole models with transformers.
#include "io/decoded_source.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "core/dtype.hpp"
#include "core/extent.hpp"
#include "io/safetensors.hpp"
#include "support/files.hpp"

namespace zea::test_decoded_source {
namespace {

/// A tensor as a file holds it.
struct Stored {
  std::string name, dtype;
  Shape shape;
  std::string bytes;
};

std::string file_of(const std::vector<Stored>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const Stored& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 255);
  return length + text + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Positive scales that are exact in bf16.
std::vector<float> scales_of(int64_t count) {
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i)
    scales.push_back(std::ldexp(1.0f + static_cast<float>(i % 16) / 16, static_cast<int>(i % 7)));
  return scales;
}

/// The 254 finite codes, repeated.
std::string float8_codes(int64_t count) {
  std::string codes;
  for (int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<int>(i % 254);
    codes += static_cast<char>(n < 127 ? n : n + 1);
  }
  return codes;
}

float value_of_float8(char code) {
  const int bits = static_cast<unsigned char>(code), exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float value = exponent == 0
                          ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(1 + static_cast<float>(mantissa) / 8, exponent - 7);
  return bits < 128 ? value : -value;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

class DecodedTensors : public ::testing::Test {
 protected:
  void write(const std::vector<Stored>& tensors, const std::string& file = "model.safetensors") {
    write_bytes(directory_ / file, file_of(tensors));
  }
  /// Writes a config.json with this quantization_config.
  void say(const std::string& quantization) {
    write_bytes(directory_ / "config.json",
                R"({"model_type": "x", "quantization_config": )" + quantization + "}");
  }
  std::unique_ptr<WeightsSource> open() const { return open_safetensors(directory_.path()); }
  std::string refusal() const {
    return error_of([&] { open(); });
  }

  /// Any box of a tensor equals that part of the whole tensor.
  void check_boxes(const WeightsSource& source, const std::string& name,
                   const std::vector<float>& expected) const {
    const TensorInfo& tensor = find_tensor(source, name);
    EXPECT_EQ(tensor.dtype, DType::BFloat16);
    const std::vector<float> all = read_tensor<float>(source, name);
    ASSERT_EQ(all.size(), expected.size());
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(bits_of(all[i]), bits_of(expected[i])) << name << " " << i;
    std::mt19937 random(1);
    for (int round = 0; round < 60; ++round) {
      Extent box = whole(tensor.shape);
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        box.offset[d] = static_cast<int64_t>(random() % tensor.shape[d]);
        box.length[d] = 1 + static_cast<int64_t>(random() % (tensor.shape[d] - box.offset[d]));
      }
      std::vector<float> part(static_cast<size_t>(box.elements()));
      for (const CopyRun& run : copy_runs(box, whole(tensor.shape), box))
        std::copy_n(all.begin() + run.source_element, run.elements,
                    part.begin() + run.target_element);
      EXPECT_EQ(read_tensor<float>(source, name, box), part);
      std::vector<uint16_t> narrow(part.size());
      source.read(name, tensor.shape, box, DType::BFloat16, narrow.data());
      for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(bfloat16_to_float(narrow[i]), part[i]);
    }
  }

  TemporaryDirectory directory_;
};

std::vector<Stored> float8_of(const Shape& shape, const Shape& scales) {
  return {{"a.weight", "F8_E4M3", shape, float8_codes(num_elements(shape))},
          {"a.weight_scale_inv", "F32", scales, bytes_of(scales_of(num_elements(scales)))}};
}

TEST_F(DecodedTensors, Float8HasSubnormalsAndASignOfZero) {
  const std::string codes{'\x00', '\x01', '\x07', '\x08', '\x38',
                          '\x7e', '\x80', '\x81', '\xb8', '\xfe'};
  write({{"a.weight", "F8_E4M3", {1, 10}, codes},
         {"a.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({1})}});
  const std::vector<float> expected{0,   0.001953125f, 0.013671875f,  0.015625f, 1,
                                    448, -0.0f,        -0.001953125f, -1,        -448};
  const std::vector<float> found = read_tensor<float>(*open(), "a.weight");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(bits_of(found[i]), bits_of(expected[i])) << i;
}

TEST_F(DecodedTensors, RefusesFloat8NaN) {
  for (const char code : {'\x7f', '\xff'}) {
    write({{"a.weight", "F8_E4M3", {1, 2}, std::string{'\x30', code}},
           {"a.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({1})}});
    const std::string message = error_of([&] { read_tensor<float>(*open(), "a.weight"); });
    EXPECT_TRUE(contains(message, "\"a.weight\" is nan at index (0, 1)")) << message;
  }
  write({{"a.weight", "F8_E4M3", {1, 2}, "01"},
         {"a.weight_scale_inv", "F32", {1, 1}, bytes_of<float>({INFINITY})}});
  const std::string message = error_of([&] { read_tensor<float>(*open(), "a.weight"); });
  EXPECT_TRUE(contains(message, "\"a.weight_scale_inv\" is infinite")) << message;
}

/// The last blocks along rows and columns are partial.
TEST_F(DecodedTensors, Float8HasBlocksOfTheConfig) {
  struct Case {
    const char* said;
    Shape shape, scales;
    int64_t rows, columns;
  };
  const std::vector<Case> cases{
      {"", {130, 300}, {2, 3}, 128, 128},
      {R"({"quant_method": "fp8"})", {128, 129}, {1, 2}, 128, 128},
      {R"({"quant_method": "fp8"})", {192, 3}, {2, 1}, 128, 128},  // not in two blocks of 96
      {R"({"quant_method": "fp8", "weight_block_size": [4, 7]})", {11, 15}, {3, 3}, 4, 7},
      {R"({"quant_method": "fp8", "weight_block_size": [3, 5]})", {3, 7, 10}, {3, 3, 2}, 3, 5}};
  for (const Case& c : cases) {
    std::filesystem::remove(directory_ / "config.json");
    if (*c.said) say(c.said);
    const std::vector<Stored> stored = float8_of(c.shape, c.scales);
    write(stored);
    std::vector<float> expected;
    const std::vector<float> scales = scales_of(num_elements(c.scales));
    const int64_t columns = c.shape.back(), rows = c.shape[c.shape.size() - 2];
    for (int64_t i = 0; i < num_elements(c.shape); ++i) {
      const int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
      const int64_t block =
          (matrix * c.scales[c.scales.size() - 2] + row / c.rows) * c.scales.back() +
          column / c.columns;
      const float exact = value_of_float8(stored[0].bytes[static_cast<size_t>(i)]) *
                          scales[static_cast<size_t>(block)];
      expected.push_back(bfloat16_to_float(float_to_bfloat16(exact)));
    }
    const auto source = open();
    ASSERT_EQ(source->tensors().size(), 1U);
    check_boxes(*source, "a.weight", expected);
    if (*c.said) {
      EXPECT_EQ(nlohmann::json::parse(source->config_json()).size(), 1U);
    }
  }
}

TEST_F(DecodedTensors, ScalesMayBeInAnotherFile) {
  const std::vector<Stored> stored = float8_of({5, 6}, {1, 1});
  write({stored[0]}, "one.safetensors");
  write({stored[1]}, "two.safetensors");
  write_bytes(directory_ / "model.safetensors.index.json",
              R"({"weight_map": {"a.weight": "one.safetensors",
                                 "a.weight_scale_inv": "two.safetensors"}})");
  EXPECT_EQ(read_tensor<float>(*open(), "a.weight").at(29), value_of_float8(29));
}

/// Experts (experts, out, in) in MXFP4 are read as (experts, in, out).
TEST_F(DecodedTensors, Mxfp4SharesAnExponentAmong32) {
  const Shape shape{2, 3, 4, 16};
  std::string codes, exponents;
  for (int64_t i = 0; i < num_elements(shape); ++i) codes += static_cast<char>(i * 37 % 256);
  for (int i = 0; i < 24; ++i) exponents += static_cast<char>(120 + i);
  write({{"a_blocks", "U8", shape, codes}, {"a_scales", "U8", {2, 3, 4}, exponents}});
  const std::vector<float> values{0,     0.5,  1,  1.5,  2,  3,  4,  6,
                                  -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
  std::vector<float> stored, expected;
  for (size_t i = 0; i < codes.size(); ++i)
    for (const int code : {codes[i] & 15, static_cast<unsigned char>(codes[i]) >> 4})
      stored.push_back(
          std::ldexp(values[static_cast<size_t>(code)], static_cast<int>(i / 16) + 120 - 127));
  for (size_t e = 0; e < 2; ++e)
    for (size_t in = 0; in < 128; ++in)
      for (size_t out = 0; out < 3; ++out) expected.push_back(stored[(e * 3 + out) * 128 + in]);
  const auto source = open();
  EXPECT_EQ(source->tensors().front().shape, (Shape{2, 128, 3}));
  check_boxes(*source, "a", expected);
  exponents[1] = '\xff';
  write({{"a_blocks", "U8", shape, codes}, {"a_scales", "U8", {2, 3, 4}, exponents}});
  const std::string message = error_of([&] { read_tensor<float>(*open(), "a"); });
  EXPECT_TRUE(contains(message, "\"a\" is nan at index (0, 32, 0)")) << message;
}

constexpr const char* kGroupsOf16 =
    R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}}}})";

/// Codes of a tensor (2, 5, 48) in groups of 16; `numbers`: the stored shape.
std::vector<Stored> int4_of(const std::string& numbers, const std::string& dtype = "I64") {
  std::string codes;
  for (int i = 0; i < 2 * 5 * 24; ++i) codes += static_cast<char>(i * 37 % 256);
  return {{"a.weight_packed", "I32", {2, 5, 6}, codes},
          {"a.weight_scale", "F32", {2, 5, 3}, bytes_of(scales_of(30))},
          {"a.weight_shape", dtype, {3}, numbers}};
}

TEST_F(DecodedTensors, Int4SharesAScaleAmongAGroup) {
  say(kGroupsOf16);
  for (const bool is_narrow : {false, true}) {
    const std::vector<Stored> stored = is_narrow ? int4_of(bytes_of<int32_t>({2, 5, 48}), "I32")
                                                 : int4_of(bytes_of<int64_t>({2, 5, 48}));
    write(stored);
    std::vector<float> expected;
    const std::vector<float> scales = scales_of(30);
    for (size_t i = 0; i < stored[0].bytes.size(); ++i)
      for (const int code :
           {stored[0].bytes[i] & 15, static_cast<unsigned char>(stored[0].bytes[i]) >> 4})
        expected.push_back(static_cast<float>(code - 8) * scales[i / 8]);
    const auto source = open();
    ASSERT_EQ(source->tensors().size(), 1U);
    EXPECT_EQ(source->tensors().front().shape, (Shape{2, 5, 48}));
    check_boxes(*source, "a.weight", expected);
  }
  write(int4_of(bytes_of<int64_t>({2, 5, 47})));
  const std::string message = error_of([&] { read_tensor<float>(*open(), "a.weight"); });
  EXPECT_TRUE(contains(message,
                       "\"a.weight_shape\" says (2, 5, 47), but \"a.weight_packed\" has "
                       "codes for (2, 5, 48)"))
      << message;
}

TEST_F(DecodedTensors, WhatDoesNotFitIsRefused) {
  struct Case {
    std::string said;
    std::vector<Stored> stored;
    const char* reason;
  };
  const std::string fp8 = R"({"quant_method": "fp8"})", mxfp4 = R"({"quant_method": "mxfp4"})";
  const auto codes = [](const Shape& shape) {
    return Stored{"a.weight", "F8_E4M3", shape, float8_codes(num_elements(shape))};
  };
  const auto scales = [](const std::string& dtype, const Shape& shape, size_t bytes) {
    return Stored{"a.weight_scale_inv", dtype, shape, std::string(bytes, '\0')};
  };
  const std::vector<Stored> int4 = int4_of(bytes_of<int64_t>({2, 5, 48}));
  const auto beside = [&](const char* name) {
    return std::vector<Stored>{int4[0], int4[1], int4[2], {name, "I32", {1}, "abcd"}};
  };
  std::string groups_of_4 = kGroupsOf16;
  groups_of_4.replace(groups_of_4.find("16"), 2, "4");
  const std::vector<Case> cases{
      {kGroupsOf16, {int4[0], int4[2]}, "but its scales \"a.weight_scale\" are missing"},
      {kGroupsOf16, {int4[0], int4[1]}, "but \"a.weight_shape\" is missing"},
      {kGroupsOf16,
       {int4[0], int4[1], {"a.weight_shape", "I64", {2}, std::string(16, '\0')}},
       "\"a.weight_shape\" has shape (2); allowed: (3)"},
      {kGroupsOf16,
       {int4[0], int4[1], {"a.weight_shape", "F32", {3}, std::string(12, '\0')}},
       "\"a.weight_shape\" has type float32; allowed: int64, int32"},
      {kGroupsOf16,
       {int4[0], int4[2], {"a.weight_scale", "F32", {2, 5, 1}, std::string(40, '\0')}},
       "have shape (2, 5, 1); allowed for blocks of 1 x 16: (2, 5, 3)"},
      {kGroupsOf16,
       {{"a.weight_packed", "I32", {1, 3}, std::string(12, '\0')}, int4[1], int4[2]},
       "its rows of 24 are not a multiple of the group size 16"},
      {kGroupsOf16,
       {int4[0], int4[2], {"a.weight_scale", "F16", {2, 5, 3}, std::string(60, '\0')}},
       "have type float16; allowed: float32, bfloat16"},
      {groups_of_4,
       {{"a.weight_packed", "I32", {2, 3}, std::string(24, '\0')},
        {"a.weight_scale", "F32", {2, 5}, std::string(40, '\0')},
        {"a.weight_shape", "I64", {2}, bytes_of<int64_t>({2, 20})}},
       "\"a.weight_scale\" are for rows of 20; allowed: a multiple of 8"},
      {kGroupsOf16,
       {{"a.weight_packed", "I32", {3}, std::string(12, '\0')}},
       "has shape (3); allowed: (..., out, in / 8)"},
      {kGroupsOf16, beside("a.weight_zero_point"), "the files also have \"a.weight_zero_point\""},
      {kGroupsOf16, beside("a.weight_g_idx"), "also have \"a.weight_g_idx\"; allowed: sym"},
      {kGroupsOf16, beside("a.weight"), "but the files also have \"a.weight\""},
      {kGroupsOf16, {codes({4, 6})}, "but quant_method in config.json is not \"fp8\""},
      {fp8, {codes({4, 6})}, "but its scales \"a.weight_scale_inv\" are missing"},
      {"", {codes({4, 6})}, "but its scales \"a.weight_scale_inv\" are missing"},
      {fp8,
       {codes({4, 6}), scales("F32", {4, 1}, 16)},
       "\"a.weight_scale_inv\" have shape (4, 1); allowed for blocks of 128 x 128: (1, 1)"},
      {fp8, {codes({4, 6}), scales("F32", {}, 4)}, "have shape (); allowed"},
      {fp8,
       {codes({4, 6}), scales("F16", {1, 1}, 2)},
       "have type float16; allowed: float32, bfloat16"},
      {fp8, {codes({4, 6}), scales("F8_E4M3", {1, 1}, 1)}, "have type F8_E4M3; allowed: float32"},
      {fp8, {codes({6})}, "has shape (6); allowed: (..., out, in)"},
      {fp8, {codes({0, 6})}, "has shape (0, 6); allowed"},
      {mxfp4,
       {codes({4, 6}), scales("F32", {1, 1}, 4)},
       "\"a.weight\" is quantized (FP8), but quant_method in config.json is not \"fp8\""},
      {mxfp4,
       {{"a_blocks", "U8", {1, 2, 15}, std::string(30, '\0')}},
       "has shape (1, 2, 15); allowed: (..., out, in / 32, 16)"},
      {mxfp4,
       {{"a_blocks", "U8", {2, 1, 16}, std::string(32, '\0')},
        {"a_scales", "U8", {2, 2}, std::string(4, '\0')}},
       "have shape (2, 2); allowed for blocks of 1 x 32: (2, 1)"},
      {mxfp4,
       {{"a_blocks", "U8", {2, 1, 16}, std::string(32, '\0')},
        {"a_scales", "U8", {2, 1}, std::string(2, '\0')},
        {"a", "F32", {1}, std::string(4, '\0')}},
       "but the files also have \"a\""},
  };
  for (const Case& c : cases) {
    std::filesystem::remove(directory_ / "config.json");
    if (!c.said.empty()) say(c.said);
    write(c.stored);
    const std::string message = refusal();
    EXPECT_TRUE(contains(message, c.reason)) << message << "\n" << c.reason;
    EXPECT_TRUE(contains(message, directory_.path())) << message;
    EXPECT_TRUE(contains(message, "dequantize()")) << message;
    EXPECT_TRUE(contains(message, "(not for FP8 with partial blocks")) << message;
  }
}

TEST_F(DecodedTensors, RefusesUnsupportedSettings) {
  write({{"a", "F32", {1}, std::string(4, '\0')}});
  say(R"({"quant_method": "fp8", "weight_block_size": [128]})");
  EXPECT_TRUE(contains(
      refusal(), directory_.path() + "/config.json: config.quantization_config.weight_block_size"))
      << refusal();
}

}  // namespace
}  // namespace zea::test_decoded_source
