// SPDX-License-Identifier: Apache-2.0
// Rows of image encoders: patches with learned tokens and positions in front of the encoder, and
// the rows of its hidden states that become features behind it. The rows here may be any part of
// the images' tokens; whole images, the usual case, go without indices.
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// Whether `positions` counts the tokens of whole images, one after the other. Only asked on the
/// host: a device would have to be waited for, and gathers fast.
bool are_whole_images(const Tensor& positions, int64_t tokens) {
  if (!positions.is_cpu() || positions.numel() % tokens != 0) return false;
  const int64_t* position = positions.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < positions.numel(); ++row)
    if (position[row] != row % tokens) return false;
  return true;
}

/// (rows, hidden)
Tensor as_rows(const Tensor& x) {
  return x.view({-1, x.size(-1)});
}

struct ImageTokensFunction : Function<ImageTokensFunction> {
  static Tensor forward(Context* ctx, const Tensor& patches, const Tensor& anchor,
                        const ImageRows& rows, Parameter* class_token, Parameter* positions,
                        Parameter* registers) {
    (void)anchor;
    remember(ctx, {class_token, positions, registers});
    ctx->save_for_backward({rows.patches, rows.positions});
    const Tensor learned = as_rows(positions->value()), first = as_rows(class_token->value());
    const int64_t tokens = learned.size(0), hidden = learned.size(1);
    const bool whole = !registers && are_whole_images(rows.positions, tokens);
    ctx->saved_data["whole"] = whole;
    if (whole) {
      const int64_t images = rows.positions.numel() / tokens;
      return at::cat(
                 {first.expand({images, 1, hidden}), patches.view({images, tokens - 1, hidden})}, 1)
          .add_(learned)
          .flatten(0, 1);
    }
    Tensor table = registers ? at::cat({learned, as_rows(registers->value())}) : learned.clone();
    table[0].add_(first[0]);
    return table.index_select(0, rows.positions).index_add_(0, rows.patches, patches);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor dy = outputs[0].contiguous();
    Tensor dpatches;
    if (ctx->needs_input_grad(0)) dpatches = dy.index_select(0, saved[0]);
    if (recall(ctx, 1)->trainable())
      add_gradients(dy, saved[1], ctx->saved_data.at("whole").toBool(),
                    {*recall(ctx, 0), *recall(ctx, 1), recall(ctx, 2)});
    return {dpatches, {}, {}, {}, {}, {}};
  }

  /// Adds to the gradient of a table of positions; registers have the rows after the last position.
  static void add_gradients(const Tensor& dy, const Tensor& positions, bool whole,
                            const ImageParameters& learned) {
    const Tensor of_positions = as_rows(learned.positions.gradient());
    const int64_t tokens = of_positions.size(0), hidden = of_positions.size(1);
    const int64_t registers =
        learned.registers ? as_rows(learned.registers->gradient()).size(0) : 0;
    const at::ScalarType type = of_positions.scalar_type();
    Tensor sum;
    if (whole) {
      sum = dy.view({dy.size(0) / tokens, tokens, hidden}).sum(0, false, type);
    } else {
      sum = at::zeros({tokens + registers, hidden}, of_positions.options());
      sum.index_add_(0, positions, dy.to(type));
    }
    of_positions.add_(sum.narrow(0, 0, tokens));
    as_rows(learned.class_token.gradient()).add_(sum[0]);
    if (learned.registers)
      as_rows(learned.registers->gradient()).add_(sum.narrow(0, tokens, registers));
  }
};

struct JoinedRowsFunction : Function<JoinedRowsFunction> {
  static Tensor forward(Context* ctx, at::TensorList states, const Tensor& rows) {
    ctx->save_for_backward({rows});
    ctx->saved_data["states"] = static_cast<int64_t>(states.size());
    ctx->saved_data["tokens"] = states[0].size(0);
    const int64_t width = states[0].size(1);
    Tensor joined =
        at::empty({rows.numel(), width * static_cast<int64_t>(states.size())}, states[0].options());
    int64_t begin = 0;
    for (const Tensor& state : states) {
      Tensor part = joined.narrow(1, begin, width);
      at::index_select_out(part, state, 0, rows);
      begin += width;
    }
    return joined;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor rows = ctx->get_saved_variables()[0];
    const int64_t states = ctx->saved_data.at("states").toInt();
    const int64_t tokens = ctx->saved_data.at("tokens").toInt();
    const int64_t width = outputs[0].size(1) / states;
    Tensors gradients;
    for (int64_t i = 0; i < states; ++i) {
      gradients.emplace_back();
      if (!ctx->needs_input_grad(i)) continue;
      gradients.back() = at::zeros({tokens, width}, outputs[0].options());
      gradients.back().index_copy_(0, rows, outputs[0].narrow(1, i * width, width));
    }
    gradients.emplace_back();
    return gradients;
  }
};

struct MixedRowsFunction : Function<MixedRowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& rows, const Tensor& shares) {
    ctx->save_for_backward({rows, shares});
    ctx->saved_data["rows"] = x.size(0);
    Tensor sum = x.index_select(0, rows.select(1, 0)).mul_(shares.narrow(1, 0, 1));
    for (int64_t i = 1; i < rows.size(1); ++i)
      sum.addcmul_(x.index_select(0, rows.select(1, i)), shares.narrow(1, i, 1));
    return sum;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& dy = outputs[0];
    Tensor dx = at::zeros({ctx->saved_data.at("rows").toInt(), dy.size(1)}, dy.options());
    for (int64_t i = 0; i < saved[0].size(1); ++i)
      dx.index_add_(0, saved[0].select(1, i), dy.mul(saved[1].narrow(1, i, 1)));
    return {dx, {}, {}};
  }
};

struct RowEndsFunction : Function<RowEndsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const Tensor& rows,
                        Parameter* end) {
    (void)anchor;
    remember(ctx, {end});
    ctx->save_for_backward({rows});
    return x.index_copy(0, rows, end->value().view({1, -1}).expand({rows.numel(), x.size(1)}));
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor rows = ctx->get_saved_variables()[0];
    Parameter* end = recall(ctx, 0);
    if (end->trainable())
      end->gradient().add_(
          outputs[0].index_select(0, rows).sum(0, false, end->gradient().scalar_type()));
    Tensor dx;
    if (ctx->needs_input_grad(0)) dx = outputs[0].index_fill(0, rows, 0);
    return {dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor image_tokens(const at::Tensor& patches, const ImageRows& rows,
                        const ImageParameters& learned) {
  ZEA_ASSERT(patches.size(0) == rows.patches.numel());
  return ImageTokensFunction::apply(patches, learned.positions.anchor(), rows, &learned.class_token,
                                    &learned.positions, learned.registers);
}

at::Tensor with_row_ends(const at::Tensor& x, const at::Tensor& rows, Parameter& end) {
  return RowEndsFunction::apply(x, end.anchor(), rows, &end);
}

at::Tensor mixed_rows(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& shares) {
  return MixedRowsFunction::apply(x, rows, shares);
}

at::Tensor frame_means(const at::Tensor& x, const std::vector<FrameRun>& runs, int64_t patches) {
  if (std::ranges::all_of(runs, [](const FrameRun& run) { return run.frames == 1; })) return x;
  std::vector<int64_t> rows;
  for (const FrameRun& run : runs) rows.push_back(run.features * run.frames * patches);
  const std::vector<at::Tensor> parts =
      runs.size() == 1 ? std::vector{x} : x.split_with_sizes(rows);
  std::vector<at::Tensor> means;
  for (size_t i = 0; i < runs.size(); ++i)
    means.push_back(parts[i]
                        .view({runs[i].features, runs[i].frames, patches, x.size(1)})
                        .mean(1)
                        .flatten(0, 1));
  return means.size() == 1 ? means.front() : at::cat(means);
}

at::Tensor joined_rows(const std::vector<at::Tensor>& states, const at::Tensor& rows) {
  if (states.size() == 1 && !rows.defined()) return states[0];
  const at::Tensor chosen =
      rows.defined() ? rows : at::arange(states[0].size(0), states[0].options().dtype(at::kLong));
  return JoinedRowsFunction::apply(at::TensorList(states), chosen);
}

}  // namespace zea
