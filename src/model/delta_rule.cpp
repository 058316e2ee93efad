// SPDX-License-Identifier: Apache-2.0
#include "model/delta_rule.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/index_tensor.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// The arguments that forward and backward of one call share.
struct DeltaCall {
  const TokenScan* scan;
  DeltaRuleSpec rule;  ///< of all heads of the parameters
  HeadShare share;

  DeltaShape shape() const { return shape_of(rule.share(share.parts)); }
};

void save(Context* ctx, const DeltaCall& call) {
  ctx->saved_data["scan"] = reinterpret_cast<int64_t>(call.scan);
  ctx->saved_data["sizes"] = std::vector<int64_t>{
      call.rule.key_heads, call.rule.value_heads, call.rule.key_dim, call.rule.value_dim,
      call.rule.taps,      call.rule.by_key_head, call.share.index,  call.share.parts};
  ctx->saved_data["eps"] = call.rule.eps;
}

DeltaCall saved_delta_call(Context* ctx) {
  const std::vector<int64_t> sizes = ctx->saved_data.at("sizes").toIntVector();
  return {reinterpret_cast<const TokenScan*>(ctx->saved_data.at("scan").toInt()),
          {.key_heads = sizes[0],
           .value_heads = sizes[1],
           .key_dim = sizes[2],
           .value_dim = sizes[3],
           .taps = sizes[4],
           .eps = ctx->saved_data.at("eps").toDouble(),
           .by_key_head = sizes[5] != 0},
          {sizes[6], sizes[7]}};
}

/// The share of the rows of a convolution's weight: of queries, keys and values.
std::vector<ColumnRun> channels_of(const DeltaCall& call) {
  const DeltaRuleSpec own = call.rule.share(call.share.parts);
  const int64_t index = call.share.index, keys = call.rule.keys();
  return {{index * own.keys(), own.keys()},
          {keys + index * own.keys(), own.keys()},
          {2 * keys + index * own.values(), own.values()}};
}

Tensor heads_of(const Tensor& of_all, const DeltaCall& call) {
  const int64_t heads = call.rule.value_heads / call.share.parts;
  return of_all.narrow(0, call.share.index * heads, heads);
}

DeltaWeights weights_of(const DeltaWeights& all, const DeltaCall& call) {
  if (call.share.parts == 1) return all;
  Tensors conv;
  for (const ColumnRun& run : channels_of(call))
    conv.push_back(all.conv.narrow(0, run.first, run.count));
  return {at::cat(conv), heads_of(all.decay, call), heads_of(all.step, call), all.norm};
}

/// The gradients of the parameters, those of the convolution's share in a tensor of their own.
struct ShareGradients {
  ShareGradients(const DeltaParameters& parameters, const DeltaCall& call)
      : all(gradients_of(parameters)), own(all) {
    if (call.share.parts == 1) return;
    if (own.conv.defined()) {
      std::vector<int64_t> shape = own.conv.sizes().vec();
      shape[0] /= call.share.parts;
      own.conv = at::zeros(shape, own.conv.options());
    }
    if (own.decay.defined()) own.decay = heads_of(own.decay, call);
    if (own.step.defined()) own.step = heads_of(own.step, call);
  }

  void add_to_all(const DeltaCall& call) const {
    if (call.share.parts == 1 || !own.conv.defined()) return;
    int64_t row = 0;
    for (const ColumnRun& run : channels_of(call)) {
      all.conv.narrow(0, run.first, run.count).add_(own.conv.narrow(0, row, run.count));
      row += run.count;
    }
  }

  DeltaGradients all, own;
};

struct DeltaRuleFunction : Function<DeltaRuleFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor,
                        const DeltaParameters& parameters, const DeltaCall& call) {
    (void)anchor;
    remember(ctx, {&parameters.conv, &parameters.decay, &parameters.step, &parameters.norm});
    save(ctx, call);
    const DeltaOutputs out = delta_rule_forward(
        x, call.scan->tokens, weights_of(values_of(parameters), call), call.shape());
    ctx->save_for_backward({x, out.mixed, out.states});
    return out.y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const DeltaCall call = saved_delta_call(ctx);
    const DeltaParameters parameters{*recall(ctx, 0), *recall(ctx, 1), *recall(ctx, 2),
                                     *recall(ctx, 3)};
    const ShareGradients gradients(parameters, call);
    const Tensor dx = delta_rule_backward(
        outputs[0].contiguous(), saved[0], call.scan->tokens, {{}, saved[1], saved[2]},
        weights_of(values_of(parameters), call), call.shape(), gradients.own);
    gradients.add_to_all(call);
    return {dx, {}, {}, {}};
  }
};

/// The last rows of each sample, with zeros before its first.
Tensor last_inputs(const Tensor& x, const std::vector<int64_t>& bounds, int64_t count) {
  const Tensor inputs = at::zeros({std::ssize(bounds) - 1, count, x.size(1)}, x.options());
  for (int64_t s = 0; s < inputs.size(0); ++s) {
    const int64_t rows = std::min(count, bounds[s + 1] - bounds[s]);
    inputs[s].narrow(0, count - rows, rows).copy_(x.narrow(0, bounds[s + 1] - rows, rows));
  }
  return inputs;
}

Tensor decoded(const Tensor& x, const DeltaWeights& weights, const DeltaCall& call,
               const DeltaDecoding& decoding) {
  const DeltaShape shape = call.shape();
  DeltaMemory& memory = decoding.memory;
  if (!decoding.samples.defined()) {
    const std::vector<int64_t>& bounds = call.scan->tokens.bounds;
    memory.states =
        at::empty({std::ssize(bounds) - 1, shape.value_heads, shape.key_dim, shape.value_dim},
                  wide(x.narrow(0, 0, 0)).options());
    memory.inputs = last_inputs(x, bounds, shape.taps - 1);
    return delta_rule_forward(x, call.scan->tokens, weights, shape, memory.states).y;
  }
  const Tensor inputs = memory.inputs.index_select(0, decoding.samples);
  const Tensor states = memory.states.index_select(0, decoding.samples);
  const Tensor y = delta_rule_step(x, inputs, states, weights, shape);
  memory.states.index_copy_(0, decoding.samples, states);
  memory.inputs.index_copy_(0, decoding.samples,
                            at::cat({inputs, x.unsqueeze(1)}, 1).narrow(1, 1, shape.taps - 1));
  return y;
}

}  // namespace

DeltaShape shape_of(const DeltaRuleSpec& rule) {
  return {rule.key_heads, rule.value_heads, rule.key_dim, rule.value_dim,
          rule.taps,      rule.by_key_head, rule.eps};
}

DeltaWeights values_of(const DeltaParameters& parameters) {
  return {parameters.conv.value(), parameters.decay.value(), parameters.step.value(),
          parameters.norm.value()};
}

DeltaGradients gradients_of(const DeltaParameters& parameters) {
  const auto of = [](Parameter& parameter) {
    return parameter.trainable() ? parameter.gradient() : at::Tensor();
  };
  return {of(parameters.conv), of(parameters.decay), of(parameters.step), of(parameters.norm)};
}

TokenScan::TokenScan(const std::vector<Segment>& samples) : tokens{{0}, {}, {}} {
  std::vector<int64_t> starts;
  for (const Segment& sample : samples) {
    ZEA_ASSERT(sample.start == tokens.bounds.back());
    starts.insert(starts.end(), sample.length, sample.start);
    tokens.bounds.push_back(sample.start + sample.length);
  }
  tokens.starts = index_tensor(starts);
  tokens.chunks = chunk_table(tokens.bounds);
}

std::vector<ColumnRun> columns_of(const DeltaRuleSpec& rule, const HeadShare& share) {
  const DeltaShape all = shape_of(rule), own = shape_of(rule.share(share.parts));
  const int64_t key_head = share.index * own.key_heads, head = share.index * own.value_heads;
  const int64_t first_strength = all.beta(head);
  if (rule.by_key_head)
    return {{all.query(key_head), own.channels() + own.values()},
            {first_strength, 2 * own.value_heads}};
  return {{all.query(key_head), own.keys()}, {all.key(key_head), own.keys()},
          {all.value(head), own.values()},   {all.gate(head), own.values()},
          {first_strength, own.value_heads}, {all.decay(head), own.value_heads}};
}

at::Tensor delta_rule(const at::Tensor& x, const TokenScan& scan, const DeltaParameters& parameters,
                      const DeltaRuleSpec& rule, const HeadShare& share,
                      const DeltaDecoding* decoding) {
  const DeltaCall call{&scan, rule, share};
  if (decoding)
    return decoded(x.contiguous(), weights_of(values_of(parameters), call), call, *decoding);
  return DeltaRuleFunction::apply(x.contiguous(), parameters.conv.anchor(), parameters, call);
}

}  // namespace zea
