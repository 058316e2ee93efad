// SPDX-License-Identifier: Apache-2.0
// The row kernels by libtorch's operations.
#include "zea/kernels/row_kernels.hpp"

namespace zea {
namespace {

constexpr double kQuickGeluSlope = 1.702;

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward_reference(const at::Tensor& x,
                                                             const at::Tensor& weight, double eps) {
  const at::Tensor x_wide = widened(x);
  const at::Tensor scale = x_wide.square().mean(-1).add_(eps).rsqrt_();
  const at::Tensor normalised = x_wide.mul(scale.unsqueeze(-1)).to(x.scalar_type());
  return {normalised.mul(weight), scale};
}

at::Tensor rms_norm_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& scale, const at::Tensor& weight,
                                       bool needs_dx, const at::Tensor& dweight) {
  const at::Tensor r = scale.unsqueeze(-1);
  const at::Tensor normalised = widened(x).mul(r), dy_wide = widened(dy);
  if (dweight.defined()) dweight.add_(dy_wide.mul(normalised).sum(0));
  if (!needs_dx) return {};
  const at::Tensor scaled = dy_wide.mul(weight);
  const at::Tensor mean = scaled.mul(normalised).mean(-1, true);
  return scaled.sub(normalised.mul(mean)).mul_(r).to(x.scalar_type());
}

at::Tensor swiglu_forward_reference(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]).mul_(halves[1]);
}

at::Tensor swiglu_backward_reference(const at::Tensor& dy, const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  at::Tensor dx = at::empty_like(x);
  const int64_t width = halves[0].size(-1);
  dx.narrow(-1, 0, width).copy_(at::silu_backward(dy.mul(halves[1]), halves[0]));
  dx.narrow(-1, width, width).copy_(at::silu(halves[0]).mul_(dy));
  return dx;
}

at::Tensor quick_gelu_forward_reference(const at::Tensor& x) {
  return x.mul(kQuickGeluSlope).sigmoid_().mul_(x);
}

at::Tensor quick_gelu_backward_reference(const at::Tensor& dy, const at::Tensor& x) {
  const at::Tensor gate = x.mul(kQuickGeluSlope).sigmoid_();
  // d/dx = s + a x s (1 - s)
  at::Tensor slope = gate.mul(x).mul_(1 - gate).mul_(kQuickGeluSlope).add_(gate);
  return slope.mul_(dy);
}

at::Tensor rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines,
                                  const at::Tensor& sines, int64_t heads, bool backwards) {
  const int64_t half = x.size(2) / 2, rest = x.size(1) - heads;
  at::Tensor y = at::empty_like(x);
  const auto part = [&](const at::Tensor& t, int64_t begin) {
    return t.narrow(1, 0, heads).narrow(2, begin, half);
  };
  const at::Tensor first = part(x, 0), second = part(x, half), cos = cosines.unsqueeze(1);
  const at::Tensor sin = (backwards ? sines.neg() : sines).unsqueeze(1);
  part(y, 0).copy_(first.mul(cos).sub_(second.mul(sin)));
  part(y, half).copy_(second.mul(cos).add_(first.mul(sin)));
  y.narrow(1, heads, rest).copy_(x.narrow(1, heads, rest));
  return y;
}

}  // namespace zea
