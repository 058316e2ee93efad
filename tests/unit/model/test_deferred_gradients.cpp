// SPDX-License-Identifier: Apache-2.0
// Deferred weight gradients: input gradients are computed before, and weight gradients that are
// added afterwards are bitwise those that are added at once.
#include "model/parameter.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"

namespace zea::testing::test_deferred_gradients {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 7, kIn = 6, kOut = 5;

/// A stack of linears over one residual: y = act(x A^T + a) B + x, then y C^T with C used twice.
class Stack {
 public:
  Stack(at::ScalarType type, bool trains) : type_(type) {
    at::manual_seed(3);
    x = random({kTokens, kIn}).set_requires_grad(true);
    dy = random({kTokens, kIn});
    make("up", {kOut, kIn}, trains);
    make("up.bias", {kOut}, trains);
    make("down", {kOut, kIn}, trains);  // (in, out)
    make("tied", {kIn, kIn}, trains);
  }

  /// Gradients are added to existing values, and are wider than bf16.
  void open_gradients(double value = 0.25) {
    const at::ScalarType type = type_ == at::kBFloat16 ? at::kFloat : type_;
    for (auto& parameter : parameters_)
      parameter->set_gradient(at::full(parameter->shape(), value, at::TensorOptions(type)));
  }

  void backward() {
    Tensor h = activate_biased(linear(x, *parameters_[0], parameters_[1].get()), nullptr,
                               Activation::Gelu);
    h = linear(h, *parameters_[2], nullptr, WeightOrder::InOut) + x;
    h = linear(h, *parameters_[3], nullptr);
    linear(h, *parameters_[3], nullptr).backward(dy);
  }

  std::vector<Parameter*> parameters() const {
    std::vector<Parameter*> all;
    for (const auto& parameter : parameters_) all.push_back(parameter.get());
    return all;
  }

  Tensor x, dy;

 private:
  Tensor random(at::IntArrayRef shape) const { return at::randn(shape, at::kDouble).to(type_); }

  void make(const char* name, std::vector<int64_t> shape, bool trains) {
    parameters_.push_back(std::make_unique<Parameter>(name, shape, trains, at::kCPU));
    parameters_.back()->set_value(random(shape));
  }

  at::ScalarType type_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
};

void expect_same_bits(const std::vector<Parameter*>& got, const std::vector<Parameter*>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i]->gradient().equal(want[i]->gradient())) << got[i]->name();
}

class DeferredGradientsTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(DeferredGradientsTest, AreBitwiseThoseThatAreAddedAtOnce) {
  Stack direct(GetParam(), true), deferred(GetParam(), true);
  direct.open_gradients();
  direct.backward();

  DeferredGradients later;
  {
    const DeferringGradients deferring(deferred.parameters(), later);
    deferred.backward();  // no gradient is open: none is touched
  }
  EXPECT_TRUE(deferred.x.grad().equal(direct.x.grad())) << "inputs' before weights'";
  EXPECT_FALSE(later.empty());
  deferred.open_gradients();
  for (Parameter* parameter : deferred.parameters()) parameter->set_value({});  // resharded
  later.run();

  EXPECT_TRUE(later.empty());
  expect_same_bits(deferred.parameters(), direct.parameters());
  EXPECT_FALSE(direct.parameters()[0]->gradient().eq(0.25).any().item<bool>()) << "has teeth";
}

TEST_P(DeferredGradientsTest, SeveralMicrobatchesWaitInQueuesOfTheirOwn) {
  Stack direct(GetParam(), true), deferred(GetParam(), true);
  direct.open_gradients();
  std::array<DeferredGradients, 3> later;
  for (DeferredGradients& one : later) {
    direct.backward();
    const DeferringGradients deferring(deferred.parameters(), one);
    deferred.backward();
  }
  deferred.open_gradients();
  for (DeferredGradients& one : later) one.run();
  expect_same_bits(deferred.parameters(), direct.parameters());
}

TEST_P(DeferredGradientsTest, NewGradientsNeedNoZeros) {
  Stack zeroed(GetParam(), true), renewed(GetParam(), true);
  zeroed.open_gradients(0);
  renewed.open_gradients(std::nan(""));
  for (Parameter* parameter : renewed.parameters()) parameter->renew_gradient();
  for (Stack* stack : {&zeroed, &renewed}) {
    DeferredGradients later;
    {
      const DeferringGradients deferring(stack->parameters(), later);
      stack->backward();
    }
    later.run();
    stack->backward();  // adds
  }
  const double bound = GetParam() == at::kDouble ? 1e-14 : 1e-5;
  for (size_t i = 0; i < zeroed.parameters().size(); ++i)
    EXPECT_TRUE(at::allclose(renewed.parameters()[i]->gradient(),
                             zeroed.parameters()[i]->gradient(), bound, bound));
}

INSTANTIATE_TEST_SUITE_P(Types, DeferredGradientsTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(DeferredGradients, OnlyPutsOffForAsLongAsItIsAsked) {
  Stack direct(at::kDouble, true), after(at::kDouble, true);
  direct.open_gradients();
  direct.backward();
  DeferredGradients later;
  { const DeferringGradients deferring(after.parameters(), later); }
  after.open_gradients();
  after.backward();
  EXPECT_TRUE(later.empty());
  expect_same_bits(after.parameters(), direct.parameters());
}

TEST(DeferredGradients, NotesNothingOfFrozenParameters) {
  Stack frozen(at::kDouble, false), trained(at::kDouble, true);
  trained.open_gradients();
  trained.backward();
  DeferredGradients later;
  const DeferringGradients deferring(frozen.parameters(), later);
  frozen.backward();
  EXPECT_TRUE(later.empty());
  EXPECT_TRUE(frozen.x.grad().equal(trained.x.grad()));
}

TEST(DeferredGradients, LetsGoOfTheTensors) {
  Stack stack(at::kDouble, true);
  DeferredGradients later;
  Tensor x = at::ones({kTokens, kIn}, at::kDouble), dy = at::ones({kTokens, kOut}, at::kDouble);
  later.defer_weight(*stack.parameters()[0], WeightOrder::OutIn, x, dy);
  EXPECT_GT(x.storage().use_count(), 1);
  stack.open_gradients();
  later.run();
  EXPECT_EQ(x.storage().use_count(), 1);
  EXPECT_EQ(dy.storage().use_count(), 1);
}

TEST(DeferredGradients, NeedTheGradientsThatTheyAreAddedTo) {
  Stack stack(at::kDouble, true);
  DeferredGradients later;
  const DeferringGradients deferring(stack.parameters(), later);
  stack.backward();
  EXPECT_THROW(later.run(), InternalError);
}

}  // namespace
}  // namespace zea::testing::test_deferred_gradients
