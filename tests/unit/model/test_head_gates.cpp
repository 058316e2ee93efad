// SPDX-License-Identifier: Apache-2.0
// Queries and their gates come apart, forward and backward, as libtorch's own operations part them.
#include <gtest/gtest.h>

#include "model/functions.hpp"

namespace zea::test_head_gates {
namespace {

using at::Tensor;

TEST(HeadGates, QueriesPartFromTheGatesBehindThem) {
  at::manual_seed(1);
  const auto doubles = at::TensorOptions(at::kDouble);
  constexpr int64_t kTokens = 5, kHeads = 3, kDim = 4, kOthers = 8;
  const Tensor x = at::randn({kTokens, 2 * kHeads * kDim + kOthers}, doubles).requires_grad_(true);
  const GatedHeads found = split_gates(x, kHeads, kDim);
  const Tensor y = x.detach().clone().requires_grad_(true);
  const std::vector<Tensor> parts =
      y.narrow(1, 0, 2 * kHeads * kDim).view({kTokens, kHeads, 2 * kDim}).split(kDim, 2);
  const Tensor others = y.narrow(1, 2 * kHeads * kDim, kOthers);
  const Tensor qkv = at::cat({parts[0].flatten(1), others}, 1), gates = parts[1].flatten(1);
  EXPECT_TRUE(found.qkv.equal(qkv));
  EXPECT_TRUE(found.gates.equal(gates));
  EXPECT_TRUE(found.qkv.is_contiguous() && found.gates.is_contiguous());
  const Tensor of_qkv = at::randn_like(qkv), of_gates = at::randn_like(gates);
  ((found.qkv * of_qkv).sum() + (found.gates * of_gates).sum()).backward();
  ((qkv * of_qkv).sum() + (gates * of_gates).sum()).backward();
  EXPECT_TRUE(x.grad().equal(y.grad()));
}

TEST(HeadGates, NoTokensHaveNoGates) {
  const Tensor x = at::zeros({0, 20}, at::TensorOptions(at::kFloat)).requires_grad_(true);
  const GatedHeads found = split_gates(x, 2, 3);
  EXPECT_EQ(found.qkv.sizes(), (std::vector<int64_t>{0, 14}));
  EXPECT_EQ(found.gates.sizes(), (std::vector<int64_t>{0, 6}));
}

}  // namespace
}  // namespace zea::test_head_gates
