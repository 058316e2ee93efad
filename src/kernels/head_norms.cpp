// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/norm_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

detail::HeadsOfToken heads_of(const at::Tensor& x, const HeadNormParameters& norm) {
  ZEA_ASSERT(x.dim() == 3 && norm.queries + norm.keys <= x.size(1));
  return {norm.queries, norm.keys, x.size(1) - norm.queries - norm.keys, x.size(2)};
}

template <class T>
detail::HeadWeights<T> weights_of(const HeadNormParameters& norm) {
  using detail::elements;
  return {elements<T>(norm.query), elements<T>(norm.key),
          norm.value.defined() ? elements<T>(norm.value) : nullptr};
}

/// Tokens of which one sum is made: as the size of a chunk says on the host, and on a device, where
/// a part has few lanes, in as many parts as keep all of it busy.
int64_t tokens_per_sum(const at::Tensor& x) {
  constexpr int64_t kMostParts = 2048, kLeastTokens = 4;
  if (x.is_cpu()) return rows_per_sum(x.size(1) * x.size(2));
  return std::max(kLeastTokens, (x.size(0) + kMostParts - 1) / kMostParts);
}

void add_weight_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                          const HeadNormParameters& norm, const HeadNormGradients& gradients) {
  const int64_t step = tokens_per_sum(x), parts = (x.size(0) + step - 1) / step;
  const at::Tensor sums = at::zeros({parts, 2, x.size(2)}, scale.options());
  detail::with_element_type(x, [&]<class T>(T) {
    using detail::elements;
    using detail::Wide;
    const detail::SumHeadNormGradients<T> functor{.dy = elements<T>(dy),
                                                  .x = elements<T>(x),
                                                  .scales = elements<Wide<T>>(scale),
                                                  .sums = elements<Wide<T>>(sums),
                                                  .heads = heads_of(x, norm),
                                                  .tokens = x.size(0),
                                                  .part_tokens = step};
    detail::run_items(x, functor, 2 * parts, (x.is_cpu() ? step * x.size(1) : 1) * x.size(2));
  });
  const at::Tensor all = sums.sum(0);
  at::Tensor query = gradients.query, key = gradients.key;
  query.add_(all[0]);
  key.add_(all[1]);
}

/// The heads of one weight.
NormRows rows_of(const at::Tensor& x, const at::Tensor& scale, int64_t first, int64_t heads) {
  NormRows rows;
  rows.x = x.narrow(1, first, heads).reshape({-1, x.size(2)});
  if (scale.defined()) rows.scale = scale.narrow(1, first, heads).reshape({-1});
  return rows;
}

}  // namespace

HeadNorms head_norms_forward(const at::Tensor& x, const HeadNormParameters& norm) {
  if (!detail::runs_kernels(x)) return head_norms_forward_reference(x, norm);
  ZEA_ASSERT(x.is_contiguous() && norm.query.scalar_type() == x.scalar_type());
  HeadNorms out{at::empty_like(x), {}};
  detail::with_element_type(x, [&]<class T>(T) {
    using detail::elements;
    using detail::Wide;
    out.scale = at::empty({x.size(0), x.size(1)},
                          x.options().dtype(c10::CppTypeToScalarType<Wide<T>>::value));
    const detail::NormalizeHead<T> functor{.x = elements<T>(x),
                                           .weights = weights_of<T>(norm),
                                           .y = elements<T>(out.y),
                                           .scales = elements<Wide<T>>(out.scale),
                                           .heads = heads_of(x, norm),
                                           .eps = static_cast<Wide<T>>(norm.eps),
                                           .offset = static_cast<Wide<T>>(norm.offset)};
    detail::run_items(x, functor, x.size(0) * x.size(1), x.size(2));
  });
  return out;
}

at::Tensor head_norms_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                               const HeadNormParameters& norm, const HeadNormGradients& gradients) {
  if (!detail::runs_kernels(x)) return head_norms_backward_reference(dy, x, scale, norm, gradients);
  ZEA_ASSERT(dy.is_contiguous() && x.is_contiguous());
  if (gradients.query.defined()) add_weight_gradients(dy, x, scale, norm, gradients);
  const at::Tensor dx = at::empty_like(x);
  detail::with_element_type(x, [&]<class T>(T) {
    using detail::elements;
    using detail::Wide;
    const detail::NormalizeHeadBackward<T> functor{.dy = elements<T>(dy),
                                                   .x = elements<T>(x),
                                                   .weights = weights_of<T>(norm),
                                                   .scales = elements<Wide<T>>(scale),
                                                   .dx = elements<T>(dx),
                                                   .heads = heads_of(x, norm),
                                                   .offset = static_cast<Wide<T>>(norm.offset)};
    detail::run_items(x, functor, x.size(0) * x.size(1), x.size(2));
  });
  return dx;
}

HeadNorms head_norms_forward_reference(const at::Tensor& x, const HeadNormParameters& norm) {
  HeadNorms out{x.clone(), {}};
  std::vector<at::Tensor> scales;
  const auto normalize = [&](const at::Tensor& weight, int64_t first, int64_t heads) {
    const NormRows rows = norm_forward_reference(rows_of(x, {}, first, heads).x, {},
                                                 {weight, {}, norm.eps, norm.offset});
    out.y.narrow(1, first, heads).copy_(rows.y.view({x.size(0), heads, x.size(2)}));
    scales.push_back(rows.scale.view({x.size(0), heads}));
  };
  normalize(norm.query, 0, norm.queries);
  normalize(norm.key, norm.queries, norm.keys);
  const int64_t others = norm.queries + norm.keys;
  if (norm.value.defined()) normalize(norm.value, others, x.size(1) - others);
  out.scale = at::cat(scales, 1);
  return out;
}

at::Tensor head_norms_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& scale, const HeadNormParameters& norm,
                                         const HeadNormGradients& gradients) {
  const at::Tensor dx = dy.clone();
  const auto of_heads = [&](const at::Tensor& weight, const at::Tensor& gradient, int64_t first,
                            int64_t heads) {
    const at::Tensor rows = norm_backward_reference(
        rows_of(dy, {}, first, heads).x, {}, rows_of(x, scale, first, heads),
        {weight, {}, norm.eps, norm.offset}, {gradient, {}, true});
    dx.narrow(1, first, heads).copy_(rows.view({x.size(0), heads, x.size(2)}));
  };
  of_heads(norm.query, gradients.query, 0, norm.queries);
  of_heads(norm.key, gradients.key, norm.queries, norm.keys);
  const int64_t others = norm.queries + norm.keys;
  if (norm.value.defined()) of_heads(norm.value, {}, others, x.size(1) - others);
  return dx;
}

}  // namespace zea
