// SPDX-License-Identifier: Apache-2.0
// The gated delta rule, compared in fp64 with its definition token by token: outputs and all
// gradients, with boundaries of samples at every position in a chunk; and a packed row, compared
// with its samples one by one.
#include <gtest/gtest.h>

#include <numeric>

#include "core/kernel_sizes.hpp"
#include "model/delta_rule.hpp"
#include "support/delta_recurrence.hpp"

namespace zea::test_delta_rule {
namespace {

using at::Tensor;

using Lengths = std::vector<int64_t>;

/// Outputs, and the gradients of x and all parameters.
using Results = std::vector<Tensor>;

Results defined(const DeltaLeaves& values, const Lengths& lengths, const DeltaRuleSpec& rule,
                const Tensor& dy) {
  DeltaLeaves leaves = values;
  for (Tensor* leaf : leaves.all()) *leaf = leaf->detach().clone().requires_grad_(true);
  const Tensor y = delta_recurrence(leaves, samples_in_turn(lengths), rule);
  y.backward(dy);
  Results results{y.detach()};
  for (const Tensor* leaf : leaves.all()) results.push_back(leaf->grad());
  return results;
}

/// The same by the kernels, with tensors of `type`, as doubles.
Results computed(const DeltaLeaves& values, const Lengths& lengths, const DeltaRuleSpec& rule,
                 const Tensor& dy, at::ScalarType type = at::kDouble) {
  const TokenScan scan(samples_in_turn(lengths));
  const auto parameter_of = [&](const Tensor& value) {
    Parameter parameter("p", value.sizes().vec(), true, at::kCPU);
    parameter.set_value(value.to(type));
    parameter.set_gradient(
        at::zeros(value.sizes(), type == at::kDouble ? at::kDouble : at::kFloat));
    return parameter;
  };
  Parameter conv = parameter_of(values.conv), decay = parameter_of(values.decay);
  Parameter step = parameter_of(values.step), norm = parameter_of(values.norm);
  const Tensor x = values.x.to(type).detach().clone().requires_grad_(true);
  const Tensor y = delta_rule(x, scan, {conv, decay, step, norm}, rule);
  y.backward(dy.to(type));
  Results results{y.detach(), x.grad()};
  for (Parameter* parameter : {&conv, &decay, &step, &norm})
    results.push_back(parameter->gradient());
  for (Tensor& result : results) result = result.to(at::kDouble);
  return results;
}

void expect_close(const Results& got, const Results& expected, double bound) {
  constexpr const char* kNames[] = {"y", "dx", "dconv", "ddecay", "dstep", "dnorm"};
  for (size_t i = 0; i < expected.size(); ++i) {
    const double size = expected[i].abs().max().item<double>();
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), bound * std::max(1.0, size))
        << kNames[i];
  }
}

int64_t sum_of(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

void compare(const Lengths& lengths, const DeltaRuleSpec& rule, double bound = 1e-12,
             at::ScalarType type = at::kDouble) {
  const int64_t tokens = sum_of(lengths);
  const DeltaLeaves leaves = random_delta_leaves(tokens, rule);
  const Tensor dy = at::randn({tokens, rule.values()}, at::kDouble);
  expect_close(computed(leaves, lengths, rule, dy, type), defined(leaves, lengths, rule, dy),
               bound);
}

class DeltaRule : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

TEST_F(DeltaRule, IsItsDefinition) {
  DeltaRuleSpec rule = kSmallDeltaRule;
  for (const bool by_key_head : {false, true}) {
    rule.by_key_head = by_key_head;
    compare({1}, rule);
    compare({kDeltaChunk}, rule);
    compare({3, 1, 20, 2, 90}, rule);
  }
  compare({70, 5}, {.key_heads = 1, .value_heads = 1, .key_dim = 16, .value_dim = 24, .taps = 2});
  compare({70, 5}, {.key_heads = 3, .value_heads = 3, .key_dim = 17, .value_dim = 33, .taps = 6});
}

TEST_F(DeltaRule, BeginsAnewAtEveryPositionOfAChunk) {
  for (int64_t first = 1; first <= kDeltaChunk; ++first) {
    SCOPED_TRACE(first);
    compare({first, kDeltaChunk + 3, 2}, kSmallDeltaRule);
  }
}

TEST_F(DeltaRule, KeepsFewStatesOfLongSamples) {
  constexpr int64_t kStates = kDeltaStateTokens;
  compare({kStates, kStates + 1}, kSmallDeltaRule);
  compare({5, 2 * kStates + 70}, kSmallDeltaRule);
}

TEST_F(DeltaRule, ComputesARowAsItsSamples) {
  const Lengths lengths{1, 2, 64, 3, 65, 130, 7};
  const int64_t tokens = sum_of(lengths);
  const DeltaLeaves leaves = random_delta_leaves(tokens, kSmallDeltaRule);
  const Tensor dy = at::randn({tokens, kSmallDeltaRule.values()}, at::kDouble);
  Results sums;
  for (const Segment& sample : samples_in_turn(lengths)) {
    DeltaLeaves own = leaves;
    own.x = leaves.x.narrow(0, sample.start, sample.length);
    Results one =
        computed(own, {sample.length}, kSmallDeltaRule, dy.narrow(0, sample.start, sample.length));
    for (size_t i = 0; i < one.size(); ++i) {
      if (sums.size() <= i)
        sums.push_back(one[i]);
      else
        sums[i] = i < 2 ? at::cat({sums[i], one[i]}) : sums[i] + one[i];
    }
  }
  expect_close(computed(leaves, lengths, kSmallDeltaRule, dy), sums, 1e-12);
}

TEST_F(DeltaRule, ComputesNarrowTypesInSingles) {
  DeltaRuleSpec rule = kSmallDeltaRule;
  rule.key_dim = rule.value_dim = 32;
  compare({9, 150}, rule, 1e-4, at::kFloat);
  compare({9, 150}, rule, 0.05, at::kBFloat16);
}

}  // namespace
}  // namespace zea::test_delta_rule
