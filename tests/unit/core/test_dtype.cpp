// SPDX-License-Identifier: Apache-2.0
// Element types: names, sizes, and conversions that round to nearest even, by exhaustion where 16
// bits allow it.
#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.hpp"

namespace zea::test_dtype {
namespace {

constexpr DType kAll[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16,
                          DType::Int64,   DType::Int32,   DType::UInt8};

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class To, class From>
To converted(DType from, From value, DType to) {
  To result;
  convert_elements(from, &value, to, &result, 1);
  return result;
}

}  // namespace

TEST(DType, NamesReadBack) {
  const size_t bytes[] = {8, 4, 2, 2, 8, 4, 1};
  for (size_t i = 0; i < std::size(kAll); ++i) {
    EXPECT_EQ(dtype_from_name(dtype_name(kAll[i])), kAll[i]);
    EXPECT_EQ(element_bytes(kAll[i]), bytes[i]);
    EXPECT_EQ(is_floating(kAll[i]), i < 4);
  }
  EXPECT_STREQ(dtype_name(DType::BFloat16), "bfloat16");
}

TEST(DType, IsSpelledInSeveralWays) {
  for (const char* name : {"bf16", "bfloat16", "torch.bfloat16", "torch.bf16"})
    EXPECT_EQ(find_dtype(name), DType::BFloat16) << name;
  for (const auto& [name, dtype] : {std::pair("fp64", DType::Float64),
                                    {"fp32", DType::Float32},
                                    {"torch.float32", DType::Float32},
                                    {"fp16", DType::Float16}})
    EXPECT_EQ(dtype_from_name(name), dtype) << name;
  for (const char* name : {"", "torch.", "float", "BF16", "bf16 ", "float8"})
    EXPECT_FALSE(find_dtype(name)) << name;
}

TEST(DType, AnUnknownNameListsTheAllowedOnes) {
  try {
    dtype_from_name("float8");
    FAIL();
  } catch (const WeightsError& error) {
    EXPECT_NE(std::string(error.what()).find("\"float8\""), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("bfloat16"), std::string::npos);
  }
}

TEST(DType, EveryBFloat16IsKeptThroughEveryWiderType) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t value = static_cast<uint16_t>(bits);
    const float wide = bfloat16_to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(wide))));
      continue;
    }
    ASSERT_EQ(float_to_bfloat16(wide), value);
    ASSERT_EQ(converted<float>(DType::BFloat16, value, DType::Float32), wide);
    const double wider = converted<double>(DType::BFloat16, value, DType::Float64);
    ASSERT_EQ(converted<uint16_t>(DType::Float64, wider, DType::BFloat16), value);
  }
}

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bfloat16(float_of(0x3f808000)), 0x3f80);  // halfway, down to even
  EXPECT_EQ(float_to_bfloat16(float_of(0x3f818000)), 0x3f82);  // halfway, up to even
  EXPECT_EQ(float_to_bfloat16(float_of(0x3f808001)), 0x3f81);
  EXPECT_EQ(float_to_bfloat16(float_of(0x3f807fff)), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(-float_of(0x3f818000)), 0xbf82);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(float_to_bfloat16(-0.0f), 0x8000);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(float_of(0x7f800001)))));
}

TEST(DType, Float16) {
  EXPECT_EQ(converted<uint16_t>(DType::Float32, 1.0f, DType::Float16), 0x3c00);
  EXPECT_EQ(converted<uint16_t>(DType::Float32, 65520.0f, DType::Float16), 0x7c00);
  EXPECT_EQ(converted<uint16_t>(DType::Float32, 65519.0f, DType::Float16), 0x7bff);
  EXPECT_EQ(converted<uint16_t>(DType::Float32, std::ldexp(1.0f, -24), DType::Float16), 1);
  EXPECT_EQ(converted<float>(DType::Float16, uint16_t{0x3555}, DType::Float32), 0.333251953125f);
}

TEST(DType, EveryFloat16IsKeptAndEveryMiddleGoesToTheEvenOne) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7fffu, 0x7c00u);
      EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(value))));
      continue;
    }
    ASSERT_EQ(float_to_float16(value), bits);
    if ((bits & 0x7fffu) >= 0x7bffu) continue;
    const float next = float16_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = (value + next) / 2, away = std::nextafter(middle, next * 2);
    ASSERT_EQ(float_to_float16(middle), bits + (bits & 1)) << value;
    ASSERT_EQ(float_to_float16(away), bits + 1) << value;
    ASSERT_EQ(float_to_float16(std::nextafter(middle, 0.0f)), bits) << value;
    const double just_above = middle * (1 + 1e-15), just_below = middle * (1 - 1e-15);
    ASSERT_EQ(converted<uint16_t>(DType::Float64, just_above, DType::Float16), bits + 1) << value;
    ASSERT_EQ(converted<uint16_t>(DType::Float64, just_below, DType::Float16), bits) << value;
  }
  const uint16_t one_and_a_half = 0x3e00, smallest = 1, infinite = 0x7c00;
  EXPECT_EQ(float16_to_float(one_and_a_half), 1.5f);
  EXPECT_EQ(float16_to_float(smallest), std::ldexp(1.0f, -24));
  EXPECT_TRUE(std::isinf(float16_to_float(infinite)));
}

TEST(DType, ConvertsArraysAndCopiesEqualTypes) {
  const std::vector<double> source = {0, 1, -2.5, 1e300, -1e-320};
  std::vector<float> floats(source.size());
  std::vector<double> same(source.size());

  convert_elements(DType::Float64, source.data(), DType::Float32, floats.data(), 5);
  convert_elements(DType::Float64, source.data(), DType::Float64, same.data(), 5);

  EXPECT_EQ(floats[2], -2.5f);
  EXPECT_TRUE(std::isinf(floats[3]));
  EXPECT_EQ(floats[4], -0.0f);
  EXPECT_EQ(same, source);
}

TEST(DType, IntegersAreCopiedButNotConverted) {
  const int64_t value = std::numeric_limits<int64_t>::min();

  EXPECT_EQ(converted<int64_t>(DType::Int64, value, DType::Int64), value);
  EXPECT_THROW(converted<double>(DType::Int64, value, DType::Float64), InternalError);
}

}  // namespace zea::test_dtype
