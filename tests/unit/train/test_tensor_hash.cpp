// SPDX-License-Identifier: Apache-2.0
// Hashes of tensors: every flipped bit, exchanged values and pairs of signs change them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "train/tensor_hash.hpp"

namespace zea::testing::test_tensor_hash {
namespace {

int64_t hash(const at::Tensor& values) {
  return hash_of(values).item<int64_t>();
}

class TensorHash : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(TensorHash, EveryBitCounts) {
  constexpr int64_t kElements = 6;
  const at::Tensor values = at::arange(1, kElements + 1).to(GetParam());
  std::set<int64_t> hashes = {hash(values)};
  auto* const bytes = static_cast<uint8_t*>(values.data_ptr());
  const auto bits = static_cast<int64_t>(values.nbytes()) * 8;
  for (int64_t bit = 0; bit < bits; ++bit) {
    const auto mask = static_cast<uint8_t>(1 << bit % 8);
    bytes[bit / 8] ^= mask;
    hashes.insert(hash(values));
    bytes[bit / 8] ^= mask;
  }
  EXPECT_EQ(std::ssize(hashes), bits + 1);
}

TEST_P(TensorHash, SignsAndPositionsCount) {
  const at::Tensor values = at::arange(1, 9).to(GetParam());
  EXPECT_NE(hash(values), hash(-values));
  EXPECT_NE(hash(values), hash(values.flip(0)));
  EXPECT_NE(hash(values), hash(values.index({at::tensor({1, 0, 2, 3, 4, 5, 6, 7})})));
}

INSTANTIATE_TEST_SUITE_P(Types, TensorHash,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

TEST(TensorHash, DependsOnlyOnValuesAndCountsTheLast) {
  const at::Tensor table = at::arange(5 << 20).to(at::kFloat).view({-1, 4});
  EXPECT_EQ(hash(table.t()), hash(table.t().contiguous()));
  const int64_t before = hash(table);
  table[-1][3] += 1;
  EXPECT_NE(hash(table), before);
  EXPECT_EQ(hash(table.narrow(0, 0, 0)), 0);
}

}  // namespace
}  // namespace zea::testing::test_tensor_hash
