// SPDX-License-Identifier: Apache-2.0
// A program that preloads the made-up Xeon (xeon.cpp): what instructions on tiles give is what
// Intel's manual defines, bit by bit, and libtorch's products of bf16 are made by them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

namespace zea::testing::test_xeon {
namespace {

/// By AVX512_BF16, which `cpuid` says as it is.
class Xeon : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "no AVX512_BF16";
  }
};

#define ZEA_TILES __attribute__((target("amx-tile,amx-bf16")))

struct alignas(64) Shapes {
  uint8_t palette = 1, reserved[15] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct Sizes {
  int rows, columns, pairs;
};

/// Of rows that are longer than a tile's.
template <class T>
using Matrix = T[16][40];

/// Sets tile 0 to a result, 1 and 2 to its factors.
ZEA_TILES void configure(const Sizes& sizes) {
  Shapes shapes;
  const int rows[] = {sizes.rows, sizes.rows, sizes.pairs};
  const int words[] = {sizes.columns, sizes.pairs, sizes.columns};
  for (int tile = 0; tile < 3; ++tile) {
    shapes.rows[tile] = static_cast<uint8_t>(rows[tile]);
    shapes.row_bytes[tile] = static_cast<uint16_t>(4 * words[tile]);
  }
  _tile_loadconfig(&shapes);
}

ZEA_TILES void add_product(Matrix<float>& sums, const Matrix<uint16_t>& a,
                           const Matrix<uint16_t>& b) {
  _tile_loadd(0, sums, sizeof sums[0]);
  _tile_loadd(1, a, sizeof a[0]);
  _tile_stream_loadd(2, b, sizeof b[0]);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, sums, sizeof sums[0]);
}

float value(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// Subnormals are zeros, read and written.
float flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x;
}

float by_definition(float sum, const uint16_t* row, const Matrix<uint16_t>& b, int column,
                    int pairs) {
  float halves[2] = {};
  for (int k = 0; k < pairs; ++k)
    for (int i = 0; i < 2; ++i)
      halves[i] = flushed(std::fma(flushed(value(row[2 * k + i])),
                                   flushed(value(b[k][2 * column + i])), halves[i]));
  return flushed(flushed(sum) + flushed(halves[0] + halves[1]));
}

void fill(Matrix<uint16_t>& matrix, std::mt19937& draw) {
  for (auto& row : matrix)  // of any size but the largest, many of them subnormal
    for (uint16_t& bits : row)
      bits = static_cast<uint16_t>(draw() & (draw() % 2 ? 0xbfff : 0x80ff));
}

TEST_F(Xeon, AddsProductsByDefinition) {
  std::mt19937 draw(1);
  for (int i = 0; i < 300; ++i) {
    const Sizes sizes{1 + static_cast<int>(draw() % 16), 1 + static_cast<int>(draw() % 16),
                      1 + static_cast<int>(draw() % 16)};
    Matrix<uint16_t> a, b;
    Matrix<float> sums = {}, expected = {};
    fill(a, draw);
    fill(b, draw);
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 40; ++column) {
        expected[row][column] = sums[row][column] = static_cast<float>(draw() % 100) - 50;
        if (row < sizes.rows && column < sizes.columns)
          expected[row][column] = by_definition(sums[row][column], a[row], b, column, sizes.pairs);
      }

    configure(sizes);
    add_product(sums, a, b);

    ASSERT_EQ(std::memcmp(sums, expected, sizeof sums), 0)
        << sizes.rows << " x " << sizes.pairs << " pairs x " << sizes.columns;
  }
}

ZEA_TILES void zero_and_store(Matrix<float>& values, Shapes& kept) {
  _tile_zero(0);
  _tile_stored(0, values, sizeof values[0]);
  _tile_storeconfig(&kept);
  _tile_release();
}

TEST_F(Xeon, TellsAndReleasesTiles) {
  Matrix<float> values;
  for (auto& row : values) std::fill(std::begin(row), std::end(row), 1.0F);
  Shapes kept;

  configure({2, 3, 4});
  zero_and_store(values, kept);

  EXPECT_EQ(kept.palette, 1);
  EXPECT_EQ(kept.rows[2], 4);
  EXPECT_EQ(kept.row_bytes[1], 16);
  EXPECT_EQ(values[1][2], 0);
  EXPECT_EQ(values[1][3], 1);
  EXPECT_EQ(values[2][0], 1);
  zero_and_store(values, kept);
  EXPECT_EQ(kept.palette, 0);
}

TEST_F(Xeon, IsOneForTheCompilersFunctionsToo) {
  EXPECT_TRUE(__builtin_cpu_is("intel"));
#ifndef __clang__  // whose 14 has no name for it
  EXPECT_TRUE(__builtin_cpu_supports("amx-bf16"));
#endif
}

double error_of(at::ScalarType type) {
  const at::Tensor a = at::randn({70, 130}).to(type), b = at::randn({130, 50}).to(type);
  return (a.mm(b) - a.to(at::kDouble).mm(b.to(at::kDouble))).abs().max().item<double>();
}

TEST_F(Xeon, LibtorchMultipliesByTiles) {
  setenv("ONEDNN_VERBOSE", "1", 1);
  at::manual_seed(1);
  ::testing::internal::CaptureStdout();
  const double of_bf16 = error_of(at::kBFloat16), of_halves = error_of(at::kHalf);
  const std::string said = ::testing::internal::GetCapturedStdout();
  // Products are below 64: half of a unit of their last place, and what sums in fp32 round.
  EXPECT_LE(of_bf16, 0.126);
  EXPECT_LE(of_halves, 0.0157);
  EXPECT_NE(said.find("amx,undef,src:bf16"), std::string::npos) << said;
  EXPECT_NE(said.find("avx10_1_512,undef,src:f16"), std::string::npos) << said;
}

}  // namespace
}  // namespace zea::testing::test_xeon
