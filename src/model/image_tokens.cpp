// SPDX-License-Identifier: Apache-2.0
// Where image tokens are put together and taken apart: patches with class tokens and positions in
// front of the encoder, and the rows of its hidden states that become features behind it. The rows
// at hand may be any part of the images' tokens; whole images, the usual case, go without indices.
#include <torch/csrc/autograd/custom_function.h>

#include "zea/core/error.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

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

struct ImageTokensFunction : Function<ImageTokensFunction> {
  static Tensor forward(Context* ctx, const Tensor& patches, const Tensor& anchor,
                        const ImageRows& rows, Parameter* class_token, Parameter* positions) {
    (void)anchor;
    remember(ctx, {class_token, positions});
    ctx->save_for_backward({rows.patches, rows.classes, rows.positions});
    const int64_t tokens = positions->shape()[0], hidden = positions->shape()[1];
    const bool whole = are_whole_images(rows.positions, tokens);
    ctx->saved_data["whole"] = whole;
    if (whole) {
      const int64_t images = rows.positions.numel() / tokens;
      const Tensor first = class_token->value().view({1, 1, hidden}).expand({images, 1, hidden});
      return at::cat({first, patches.view({images, tokens - 1, hidden})}, 1)
          .add_(positions->value())
          .flatten(0, 1);
    }
    Tensor placed = at::empty({rows.positions.numel(), hidden}, patches.options());
    placed.index_copy_(0, rows.patches, patches);
    placed.index_copy_(
        0, rows.classes,
        class_token->value().view({1, hidden}).expand({rows.classes.numel(), hidden}));
    return placed.add_(positions->value().index_select(0, rows.positions));
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const ImageRows rows{saved[0], saved[1], saved[2]};
    Parameter* class_token = recall(ctx, 0);
    Parameter* positions = recall(ctx, 1);
    const bool whole = ctx->saved_data.at("whole").toBool();
    const Tensor dy = outputs[0].contiguous();
    Tensor dpatches;
    if (ctx->needs_input_grad(0)) dpatches = dy.index_select(0, rows.patches);
    if (positions->trainable()) {
      if (whole)
        add_whole(dy, *class_token, *positions);
      else
        add_rows(dy, rows, *class_token, *positions);
    }
    return {dpatches, {}, {}, {}, {}};
  }

  static void add_whole(const Tensor& dy, Parameter& class_token, Parameter& positions) {
    const int64_t tokens = positions.shape()[0], hidden = positions.shape()[1];
    const Tensor sum = dy.view({dy.size(0) / tokens, tokens, hidden})
                           .sum(0, false, positions.gradient().scalar_type());
    positions.gradient().add_(sum);
    class_token.gradient().add_(sum[0]);
  }

  static void add_rows(const Tensor& dy, const ImageRows& rows, Parameter& class_token,
                       Parameter& positions) {
    const at::ScalarType type = positions.gradient().scalar_type();
    positions.gradient().index_add_(0, rows.positions, dy.to(type));
    class_token.gradient().add_(dy.index_select(0, rows.classes).sum(0, false, type));
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

}  // namespace

at::Tensor image_tokens(const at::Tensor& patches, const ImageRows& rows, Parameter& class_token,
                        Parameter& positions) {
  ZEA_ASSERT(patches.size(0) == rows.patches.numel());
  return ImageTokensFunction::apply(patches, positions.anchor(), rows, &class_token, &positions);
}

at::Tensor joined_rows(const std::vector<at::Tensor>& states, const at::Tensor& rows) {
  if (states.size() == 1 && !rows.defined()) return states[0];
  const at::Tensor chosen =
      rows.defined() ? rows : at::arange(states[0].size(0), states[0].options().dtype(at::kLong));
  return JoinedRowsFunction::apply(at::TensorList(states), chosen);
}

}  // namespace zea
