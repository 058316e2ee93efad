// SPDX-License-Identifier: Apache-2.0
#include "model/delta_rule.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/index_tensor.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

DeltaShape shape_of(const DeltaRuleSpec& rule) {
  return {rule.key_heads, rule.value_heads, rule.key_dim, rule.value_dim,
          rule.taps,      rule.by_key_head, rule.eps};
}

void save_shape(Context* ctx, const DeltaShape& shape) {
  ctx->saved_data["shape"] =
      std::vector<int64_t>{shape.key_heads, shape.value_heads, shape.key_dim,
                           shape.value_dim, shape.taps,        shape.by_key_head};
  ctx->saved_data["eps"] = shape.eps;
}

DeltaShape saved_shape(Context* ctx) {
  const std::vector<int64_t> sizes = ctx->saved_data.at("shape").toIntVector();
  return {sizes[0], sizes[1],      sizes[2],
          sizes[3], sizes[4],      sizes[5] != 0,
          ctx->saved_data.at("eps").toDouble()};
}

DeltaWeights values_of(Context* ctx) {
  return {recall(ctx, 0)->value(), recall(ctx, 1)->value(), recall(ctx, 2)->value(),
          recall(ctx, 3)->value()};
}

DeltaGradients gradients_of(Context* ctx) {
  const auto of = [&](int position) {
    Parameter* parameter = recall(ctx, position);
    return parameter->trainable() ? parameter->gradient() : Tensor();
  };
  return {of(0), of(1), of(2), of(3)};
}

struct DeltaRuleFunction : Function<DeltaRuleFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor,
                        const TokenScan* scan, const DeltaParameters& parameters,
                        const DeltaShape& shape) {
    (void)anchor;
    remember(ctx, {&parameters.conv, &parameters.decay, &parameters.step, &parameters.norm});
    ctx->saved_data["scan"] = reinterpret_cast<int64_t>(scan);
    save_shape(ctx, shape);
    const DeltaOutputs out = delta_rule_forward(x, scan->tokens, values_of(ctx), shape);
    ctx->save_for_backward({x, out.mixed, out.states});
    return out.y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const auto* scan = reinterpret_cast<const TokenScan*>(ctx->saved_data.at("scan").toInt());
    return {delta_rule_backward(outputs[0].contiguous(), saved[0], scan->tokens,
                                {{}, saved[1], saved[2], {}}, values_of(ctx), saved_shape(ctx),
                                gradients_of(ctx)),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

TokenScan::TokenScan(const std::vector<Segment>& samples) : tokens{{0}, {}} {
  std::vector<int64_t> starts;
  for (const Segment& sample : samples) {
    ZEA_ASSERT(sample.start == tokens.bounds.back());
    starts.insert(starts.end(), sample.length, sample.start);
    tokens.bounds.push_back(sample.start + sample.length);
  }
  tokens.starts = index_tensor(starts);
}

at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan, const DeltaParameters& parameters,
                      const DeltaRuleSpec& rule) {
  return DeltaRuleFunction::apply(x.contiguous(), parameters.conv.anchor(), &scan, parameters,
                                  shape_of(rule));
}

}  // namespace zea
