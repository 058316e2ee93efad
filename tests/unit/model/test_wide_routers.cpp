// SPDX-License-Identifier: Apache-2.0
// Routers with wide outputs choose by scores in fp32 where the model is bf16.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "batch/make_microbatch.hpp"
#include "kernels/matmul.hpp"
#include "model/unit.hpp"
#include "support/measured_models.hpp"

namespace zea::test_wide_routers {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 64;

/// Returns the ends of the experts' rows in the first block with experts, whose scores differ by
/// less than bf16 resolves: expert e has the score x0 + e 2^-12 x1 for a normed row x.
Tensor ends_of_close_scores(const std::string& family, at::ScalarType type) {
  const ModelSpec model = make_model_spec(testing::measured_model(family).config);
  LoadedMicrobatch loaded;
  loaded.samples.emplace_back();
  loaded.samples.back().tokens.assign(kTokens, 5);
  loaded.samples.back().loss_mask.assign(kTokens, 1);
  const Microbatch microbatch = make_microbatch(loaded, model, {.dtype = type});
  const auto block = std::ranges::find_if(model.units, [&](const UnitSpec& unit) {
    return unit.kind == UnitKind::Block && model.mlp(unit).router;
  });
  const LoneUnit unit(model, *block, at::dtype(type), at::kFloat);
  const auto set = [&](const std::string& role, const Tensor& value) {
    unit.parameters()[static_cast<size_t>(block->index_of(role))]->set_value(value.to(type));
  };
  const int64_t hidden = model.decoder.block.hidden, experts = model.mlp(*block).router->experts;
  Tensor router = at::zeros({experts, hidden});
  router.select(1, 0).fill_(1);
  router.select(1, 1).copy_(at::arange(experts) * 0x1p-12);
  set("router.weight", router);
  set("out.weight",
      at::zeros_like(
          unit.parameters()[static_cast<size_t>(block->index_of("out.weight"))]->value()));
  for (const char* role : {"correction_bias", "router.bias"})
    if (block->has(role)) set(role, at::zeros({experts}));
  at::manual_seed(1);
  const Tensor rows = at::randn({kTokens, hidden});
  rows.select(1, 1).copy_(at::arange(kTokens).remainder(2) * 2 - 1);
  const UnitInputs inputs{rows.to(at::kBFloat16).to(type)};
  const at::NoGradGuard guard;
  return run_unit(
             {model, *block, unit.parameters(), inputs, microbatch, HeadOutput::Loss, Layers()})
      .expert_offsets.to(at::kLong);
}

TEST(WideRouters, ChooseInBf16AsInFp32) {
  for (const char* family : {"deepseek_v3", "glm4_moe", "glm4v_moe", "glm46v", "kimi_k25"})
    EXPECT_TRUE(
        ends_of_close_scores(family, at::kBFloat16).equal(ends_of_close_scores(family, at::kFloat)))
        << family;
}

/// As in transformers, which rounds their outputs: then such scores are equal.
TEST(WideRouters, OthersRoundTheirOutputs) {
  for (const char* family : {"qwen3_moe", "mixtral", "gpt_oss"})
    EXPECT_FALSE(
        ends_of_close_scores(family, at::kBFloat16).equal(ends_of_close_scores(family, at::kFloat)))
        << family;
}

TEST(WideRouters, ProductsAreThoseOfExactSums) {
  at::manual_seed(2);
  for (const int64_t rows : {1, 3, 200}) {
    const Tensor a = at::randn({rows, 512}).to(at::kBFloat16),
                 b = at::randn({48, 512}).to(at::kBFloat16).t();
    const Tensor found = wide_product(a, b);
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    EXPECT_LE((found - a.to(at::kDouble).mm(b.to(at::kDouble))).abs().max().item<double>(), 1e-4);
  }
}

}  // namespace
}  // namespace zea::test_wide_routers
