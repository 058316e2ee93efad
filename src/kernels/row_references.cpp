// SPDX-License-Identifier: Apache-2.0
// The row kernels by libtorch's operations.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/mixed_bits.hpp"
#include "kernels/row_kernels.hpp"

namespace zea {
namespace {

constexpr double kQuickGeluSlope = 1.702;

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

/// Weight and offset, in the type that sums are taken in.
at::Tensor factor_of(const NormParameters& norm) {
  return widened(norm.weight) + norm.offset;
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const NormRows& rows, const NormParameters& norm,
                             const NormGradients& gradients) {
  const at::Tensor r = rows.scale.unsqueeze(-1);
  const at::Tensor normalized = widened(rows.x).mul(r), dy_wide = widened(dy);
  if (at::Tensor target = gradients.weight; target.defined())
    target.add_(dy_wide.mul(normalized).sum(0));
  if (!gradients.needs_dx) return {};
  const at::Tensor scaled = dy_wide.mul(factor_of(norm));
  const at::Tensor mean = scaled.mul(normalized).mean(-1, true);
  return scaled.sub(normalized.mul(mean)).mul_(r).to(dy.scalar_type());
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const NormRows& rows,
                               const NormParameters& norm, const NormGradients& gradients) {
  at::Tensor weight = gradients.weight, bias = gradients.bias;
  const bool trains = weight.defined();
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      dy, rows.x, norm.weight.sizes(), rows.mean, rows.scale, norm.weight + norm.offset, norm.bias,
      {gradients.needs_dx, trains, trains});
  if (trains) {
    weight.add_(dweight);
    bias.add_(dbias);
  }
  return dx;
}

/// Returns torch's name of the approximation.
const char* approximation(Gating gating) {
  return gating == Gating::GeluTanh ? "tanh" : "none";
}

at::Tensor gate_values(const at::Tensor& x, Gating gating) {
  return gating == Gating::Silu ? at::silu(x) : at::gelu(x, approximation(gating));
}

at::Tensor quick_gelu_backward(const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor gate = x.mul(kQuickGeluSlope).sigmoid_();
  // d/dx = s + a x s (1 - s)
  at::Tensor slope = gate.mul(x).mul_(1 - gate).mul_(kQuickGeluSlope).add_(gate);
  return slope.mul_(dy);
}

/// The bits of `x` (int64) moved down, with zeros above them.
at::Tensor moved_down(const at::Tensor& x, int64_t bits) {
  return x.bitwise_right_shift(bits).bitwise_and((int64_t{1} << (64 - bits)) - 1);
}

/// mixed() of each element.
at::Tensor mixed_elements(const at::Tensor& of) {
  const auto number = [](uint64_t bits) { return static_cast<int64_t>(bits); };
  at::Tensor x = of + number(kGoldenGamma);
  x = x.bitwise_xor(moved_down(x, 30)).mul_(number(0xbf58476d1ce4e5b9u));
  x = x.bitwise_xor(moved_down(x, 27)).mul_(number(0x94d049bb133111ebu));
  return x.bitwise_xor(moved_down(x, 31));
}

/// Returns the scores of routers' outputs (tokens, experts).
at::Tensor scores_of(const at::Tensor& outputs, bool are_sigmoids) {
  return are_sigmoids ? widened(outputs).sigmoid() : widened(outputs).softmax(1);
}

/// Returns the indices of the largest values of each row. A stable sort: ties go to the lower
/// index.
at::Tensor largest(const at::Tensor& values, int64_t count) {
  return std::get<1>(values.sort(true, 1, true)).narrow(1, 0, count).contiguous();
}

/// Leaves no experts but those of each token's best groups.
at::Tensor in_best_groups(const at::Tensor& ranks, const RouteOptions& options) {
  const at::Tensor by_group =
      ranks.view({ranks.size(0), options.groups, ranks.size(1) / options.groups});
  const at::Tensor sums = std::get<0>(by_group.topk(2, 2)).sum(2);
  const at::Tensor is_other = at::ones(sums.sizes(), sums.options().dtype(at::kBool))
                                  .scatter_(1, largest(sums, options.topk_groups), false);
  return by_group.masked_fill(is_other.unsqueeze(2), -std::numeric_limits<double>::infinity())
      .flatten(1);
}

}  // namespace

namespace {

/// The rows of a table at `places`; zeros for -1.
at::Tensor rows_at(const at::Tensor& table, const at::Tensor& places) {
  const at::Tensor flat = places.flatten(), here = flat.ge(0).nonzero().squeeze(1);
  return at::zeros({flat.numel(), table.size(1)}, table.options())
      .index_copy(0, here, table.index_select(0, flat.index_select(0, here)));
}

/// `table` with `rows` at their places, but for those at -1.
at::Tensor with_rows_at(const at::Tensor& table, const at::Tensor& places, const at::Tensor& rows) {
  const at::Tensor flat = places.flatten(), here = flat.ge(0).nonzero().squeeze(1);
  return table.index_copy(0, flat.index_select(0, here), rows.index_select(0, here));
}

}  // namespace

at::Tensor send_rows_reference(const at::Tensor& x, const at::Tensor& places, int64_t rows) {
  return with_rows_at(at::empty({rows, x.size(1)}, x.options()), places,
                      x.repeat_interleave(places.size(1), 0));
}

at::Tensor combine_rows_reference(const at::Tensor& y, const at::Tensor& places,
                                  const at::Tensor& gates) {
  const at::Tensor rows =
      widened(rows_at(y, places)).view({places.size(0), places.size(1), y.size(1)});
  return (gates.defined() ? rows * gates.unsqueeze(-1) : rows).sum(1).to(y.scalar_type());
}

CombinedGradients combine_rows_backward_reference(const at::Tensor& dx, const at::Tensor& y,
                                                  const at::Tensor& places,
                                                  const at::Tensor& gates) {
  const at::Tensor copies = widened(dx.repeat_interleave(places.size(1), 0));
  const at::Tensor dy = copies * gates.flatten().unsqueeze(-1);
  return {with_rows_at(at::empty_like(y), places, dy.to(y.scalar_type())),
          (copies * widened(rows_at(y, places))).sum(1).view(gates.sizes())};
}

at::Tensor drop_elements_reference(const at::Tensor& x, const at::Tensor& keys,
                                   const Dropout& dropout) {
  const at::Tensor columns = at::arange(dropout.first_column, dropout.first_column + x.size(1),
                                        at::dtype(at::kLong).device(x.device()));
  const at::Tensor rows =
      mixed_elements(mixed_elements(keys).bitwise_xor(static_cast<int64_t>(dropout.stream)));
  const at::Tensor drawn =
      mixed_elements(rows.unsqueeze(1) + columns * static_cast<int64_t>(kGoldenGamma));
  const at::Tensor is_kept = moved_down(drawn, 11).ge(static_cast<int64_t>(dropout.rate * 0x1p53));
  return widened(x).mul(1 / (1 - dropout.rate)).mul_(is_kept).to(x.scalar_type());
}

NormRows norm_forward_reference(const at::Tensor& x, const at::Tensor& added,
                                const NormParameters& norm) {
  NormRows out;
  out.x = added.defined() ? x + added : x;
  if (norm.bias.defined()) {
    std::tie(out.y, out.mean, out.scale) = at::native_layer_norm(
        out.x, norm.weight.sizes(), norm.weight + norm.offset, norm.bias, norm.eps);
    out.mean = out.mean.squeeze(-1);
    out.scale = out.scale.squeeze(-1);
    return out;
  }
  const at::Tensor x_wide = widened(out.x);
  out.scale = x_wide.square().mean(-1).add_(norm.eps).rsqrt_();
  out.y = x_wide.mul(out.scale.unsqueeze(-1)).mul(factor_of(norm)).to(x.scalar_type());
  return out;
}

at::Tensor norm_backward_reference(const at::Tensor& dy, const at::Tensor& before,
                                   const NormRows& rows, const NormParameters& norm,
                                   const NormGradients& gradients) {
  const at::Tensor dx = norm.bias.defined() ? layer_norm_backward(dy, rows, norm, gradients)
                                            : rms_norm_backward(dy, rows, norm, gradients);
  return dx.defined() && before.defined() ? dx + before : dx;
}

at::Tensor gated_forward_reference(const at::Tensor& x, Gating gating) {
  const auto halves = x.chunk(2, -1);
  return gate_values(halves[0], gating).mul_(halves[1]);
}

at::Tensor gated_backward_reference(const at::Tensor& dy, const at::Tensor& x, Gating gating) {
  const auto halves = x.chunk(2, -1);
  at::Tensor dx = at::empty_like(x);
  const int64_t width = halves[0].size(-1);
  const at::Tensor dgate = dy.mul(halves[1]);
  dx.narrow(-1, 0, width)
      .copy_(gating == Gating::Silu ? at::silu_backward(dgate, halves[0])
                                    : at::gelu_backward(dgate, halves[0], approximation(gating)));
  dx.narrow(-1, width, width).copy_(gate_values(halves[0], gating).mul_(dy));
  return dx;
}

at::Tensor clamped_gate_forward_reference(const at::Tensor& x, double alpha, double limit) {
  const at::Tensor pairs = widened(x).unflatten(-1, {-1, 2});
  const at::Tensor gate = pairs.select(-1, 0).clamp_max(limit);
  const at::Tensor up = pairs.select(-1, 1).clamp(-limit, limit);
  return (gate * (gate * alpha).sigmoid() * (up + 1)).to(x.scalar_type());
}

at::Tensor clamped_gate_backward_reference(const at::Tensor& dy, const at::Tensor& x, double alpha,
                                           double limit) {
  const at::Tensor pairs = widened(x).unflatten(-1, {-1, 2}), d = widened(dy);
  const at::Tensor all_gates = pairs.select(-1, 0), all_up = pairs.select(-1, 1);
  const at::Tensor gate = all_gates.clamp_max(limit), up = all_up.clamp(-limit, limit);
  const at::Tensor s = (gate * alpha).sigmoid();
  const at::Tensor dgate = d * (up + 1) * s * (gate * alpha * (1 - s) + 1);
  const at::Tensor dx = at::empty_like(pairs);
  dx.select(-1, 0).copy_(dgate.masked_fill(all_gates > limit, 0));
  dx.select(-1, 1).copy_((d * gate * s).masked_fill(all_up.abs() > limit, 0));
  return dx.flatten(-2).to(x.scalar_type());
}

void scale_rows_reference(const at::Tensor& x, const at::Tensor& factors) {
  x.copy_(widened(x) * factors.unsqueeze(-1));
}

at::Tensor row_dots_reference(const at::Tensor& x, const at::Tensor& y) {
  return (widened(x) * widened(y)).sum(-1);
}

at::Tensor gelu_forward_reference(const at::Tensor& x, const at::Tensor& bias, Gelu kind) {
  const at::Tensor sum = bias.defined() ? x + bias : x;
  if (kind == Gelu::Quick) return sum.mul(kQuickGeluSlope).sigmoid_().mul_(sum);
  return at::gelu(sum, kind == Gelu::Tanh ? "tanh" : "none");
}

at::Tensor gelu_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias, Gelu kind, const at::Tensor& dbias) {
  const at::Tensor sum = bias.defined() ? x + bias : x;
  const at::Tensor dx = kind == Gelu::Quick
                            ? quick_gelu_backward(dy, sum)
                            : at::gelu_backward(dy, sum, kind == Gelu::Tanh ? "tanh" : "none");
  if (at::Tensor target = dbias; target.defined())
    target.add_(dx.sum(0, false, target.scalar_type()));
  return dx;
}

void rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                            int64_t heads, bool backwards, bool of_neighbors) {
  const int64_t half = cosines.size(-1);
  const auto of_heads = [&](const at::Tensor& table) {
    return table.dim() == 2 ? table.unsqueeze(1) : table.repeat({1, heads / table.size(1), 1});
  };
  const at::Tensor turned = x.narrow(1, 0, heads).narrow(2, 0, 2 * half), cos = of_heads(cosines);
  const at::Tensor pairs = of_neighbors ? turned.unflatten(2, {half, 2})
                                        : turned.unflatten(2, {2, half}).transpose(2, 3);
  const at::Tensor first = pairs.select(3, 0), second = pairs.select(3, 1);
  const at::Tensor sin = of_heads(backwards ? sines.neg() : sines);
  const at::Tensor sum = second.mul(cos).add_(first.mul(sin));
  first.copy_(first.mul(cos).sub_(second.mul(sin)));
  second.copy_(sum);
}

Routes route_rows_reference(const at::Tensor& outputs, const at::Tensor& bias,
                            const RouteOptions& options) {
  const at::Tensor scores = scores_of(outputs, options.are_sigmoids);
  at::Tensor ranks = bias.defined() ? scores + bias.to(scores.scalar_type()) : scores;
  if (options.groups > 1) ranks = in_best_groups(ranks, options);
  const at::Tensor chosen = largest(ranks, options.chosen);
  at::Tensor gates = scores.gather(1, chosen);
  if (options.renormalizes) gates = gates / (gates.sum(1, true) + options.min_sum);
  if (options.factor != 1) gates = gates * options.factor;
  return {gates, chosen};
}

at::Tensor route_rows_backward_reference(const at::Tensor& dgates, const at::Tensor& outputs,
                                         const at::Tensor& chosen, const RouteOptions& options) {
  const at::Tensor scores = scores_of(outputs, options.are_sigmoids);
  const at::Tensor gates = scores.gather(1, chosen);
  at::Tensor d = options.factor == 1 ? dgates : dgates * options.factor;
  if (options.renormalizes) {
    const at::Tensor sum = gates.sum(1, true) + options.min_sum;
    d = (d - (d * gates).sum(1, true) / sum) / sum;
  }
  const at::Tensor terms = d * (options.are_sigmoids ? gates * (1 - gates) : gates);
  const at::Tensor others =
      options.are_sigmoids ? at::zeros_like(scores) : scores * -terms.sum(1, true);
  return others.scatter_add_(1, chosen, terms).to(outputs.scalar_type());
}

PlacesOfCopies place_copies_reference(const at::Tensor& sorted, const at::Tensor& copies,
                                      int64_t experts) {
  const int64_t count = sorted.numel();
  const at::Tensor numbers = at::arange(std::max(count, experts), sorted.options());
  const at::Tensor placed = numbers.narrow(0, 0, count).masked_fill(sorted >= experts, -1);
  return {at::empty_like(copies).scatter_(0, copies, placed),
          at::searchsorted(sorted, numbers.narrow(0, 0, experts), true, true)};
}

void add_active_rows_reference(const at::Tensor& target, const at::Tensor& made,
                               const at::Tensor& ends) {
  const at::Tensor is_idle = ends.diff(1, 0, at::zeros({1}, ends.options())) == 0;
  target.add_(made.masked_fill(is_idle.view({-1, 1, 1}), 0));
}

}  // namespace zea
