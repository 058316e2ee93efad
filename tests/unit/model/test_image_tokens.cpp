// SPDX-License-Identifier: Apache-2.0
// Image tokens whose rows are distributed over several ranks equal those of whole images: the
// output of each part, and the sum of the parts' contributions to the gradients.
#include <gtest/gtest.h>

#include "model/functions.hpp"

namespace zea::test_image_tokens {
namespace {

using at::Tensor;

constexpr int64_t kImages = 3, kTokens = 5, kHidden = 4;
constexpr double kTolerance = 1e-12;

Tensor random(at::IntArrayRef shape) {
  return at::randn(shape, at::kDouble);
}

Parameter make_parameter(const Tensor& value) {
  Parameter parameter("tested", value.sizes().vec(), true, at::kCPU);
  parameter.set_value(value);
  parameter.set_gradient(at::zeros_like(value));
  return parameter;
}

Tensor ids(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

void expect_equal(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  if (want.numel() == 0) return;
  EXPECT_LE(got.sub(want).abs().max().item<double>(), kTolerance);
}

/// The tokens of all images that a rank has, ascending, as its rows. The first of an image is its
/// class token, the last are registers.
struct Part {
  std::vector<int64_t> tokens;

  static bool is_patch(int64_t token, int64_t registers) {
    return token % kTokens > 0 && token % kTokens < kTokens - registers;
  }
  ImageRows rows(int64_t registers) const {
    std::vector<int64_t> patches, positions;
    for (size_t row = 0; row < tokens.size(); ++row) {
      positions.push_back(tokens[row] % kTokens);
      if (is_patch(tokens[row], registers)) patches.push_back(static_cast<int64_t>(row));
    }
    return {ids(patches), ids(positions)};
  }
  /// Returns the indices of these patches among all patches.
  Tensor patches(int64_t registers) const {
    std::vector<int64_t> found;
    for (int64_t token : tokens)
      if (is_patch(token, registers))
        found.push_back(token / kTokens * (kTokens - 1 - registers) + token % kTokens - 1);
    return ids(found);
  }
};

/// Splits of all tokens: whole images, uneven, without a class token, nothing at all.
std::vector<std::vector<Part>> splits() {
  return {{{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}}},
          {{{0, 1, 2, 3, 4}}, {{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}}},
          {{{0, 1, 2}}, {{3, 4, 5, 6, 7}}, {{}}, {{8, 9, 10, 11, 12, 13, 14}}},
          {{{1, 3, 11, 13, 14}}, {{0, 2, 4, 5, 10, 12}}, {{6, 7, 8, 9}}}};
}

/// Plain torch, and autograd's own gradients. Shapes of learned parameters begin with a 1 if there
/// are registers.
struct Reference {
  explicit Reference(int64_t registers)
      : patches(leaf({kImages * (kTokens - 1 - registers), kHidden})),
        class_token(registers > 0 ? leaf({1, 1, kHidden}) : leaf({kHidden})),
        positions(registers > 0 ? leaf({1, kTokens - registers, kHidden})
                                : leaf({kTokens, kHidden})),
        of_registers(leaf({1, registers, kHidden})) {
    const Tensor first = class_token.view({1, 1, kHidden}).expand({kImages, 1, kHidden});
    const Tensor rest = patches.view({kImages, kTokens - 1 - registers, kHidden});
    const Tensor behind = of_registers.expand({kImages, registers, kHidden});
    y = at::cat({at::cat({first, rest}, 1).add(positions), behind}, 1).flatten(0, 1);
    y.backward(dy);
  }

  static Tensor leaf(at::IntArrayRef shape) { return random(shape).set_requires_grad(true); }

  Tensor patches, class_token, positions, of_registers;
  Tensor dy = random({kImages * kTokens, kHidden});
  Tensor y;
};

void expect_parts_equal_whole(int64_t registers) {
  const Reference want(registers);
  for (const std::vector<Part>& split : splits()) {
    Parameter class_token = make_parameter(want.class_token.detach());
    Parameter positions = make_parameter(want.positions.detach());
    Parameter of_registers = make_parameter(want.of_registers.detach());
    for (const Part& part : split) {
      const Tensor own = part.patches(registers), tokens = ids(part.tokens);
      const Tensor patches = want.patches.detach().index_select(0, own).set_requires_grad(true);

      const Tensor got =
          image_tokens(patches, part.rows(registers),
                       {class_token, positions, registers > 0 ? &of_registers : nullptr});
      got.backward(want.dy.index_select(0, tokens));

      expect_equal(got.detach(), want.y.detach().index_select(0, tokens));
      expect_equal(patches.grad(), want.patches.grad().index_select(0, own));
    }
    expect_equal(class_token.gradient(), want.class_token.grad());
    expect_equal(positions.gradient(), want.positions.grad());
    if (registers > 0) expect_equal(of_registers.gradient(), want.of_registers.grad());
  }
}

TEST(ImageTokens, PartsEqualTheWhole) {
  at::manual_seed(3);
  expect_parts_equal_whole(0);
}

TEST(ImageTokens, PartsWithRegistersEqualTheWhole) {
  at::manual_seed(5);
  expect_parts_equal_whole(2);
}

TEST(JoinedRows, AreTheRowsOfEveryStateSideBySide) {
  at::manual_seed(4);
  for (const std::vector<int64_t>& rows :
       std::vector<std::vector<int64_t>>{{1, 2, 4}, {0, 1, 2, 3, 4}, {}})
    for (int64_t count : {1, 3}) {
      std::vector<Tensor> states, leaves;
      for (int64_t i = 0; i < count; ++i) {
        states.push_back(random({kTokens, kHidden}).set_requires_grad(true));
        leaves.push_back(states.back().detach().clone().set_requires_grad(true));
      }
      const Tensor dy = random({static_cast<int64_t>(rows.size()), kHidden * count});

      const Tensor got = joined_rows(states, ids(rows));
      const Tensor want = at::cat(leaves, 1).index_select(0, ids(rows));
      got.backward(dy);
      want.backward(dy);

      expect_equal(got.detach(), want.detach());
      for (int64_t i = 0; i < count; ++i) expect_equal(states[i].grad(), leaves[i].grad());
    }
}

}  // namespace
}  // namespace zea::test_image_tokens
