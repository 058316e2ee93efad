// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "kernels/norm_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::runs_kernels;
using detail::SumNormGradients;
using detail::Wide;
using detail::with_element_type;

template <class T>
T* elements_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? elements<T>(tensor) : nullptr;
}

template <class T>
detail::NormalizeRowBackward<T> gradient_of_rows(const at::Tensor& dy, const at::Tensor& before,
                                                 const NormRows& rows, const NormParameters& norm,
                                                 const at::Tensor& dx) {
  return {.dy = elements<T>(dy),
          .x = elements<T>(rows.x),
          .weight = elements<T>(norm.weight),
          .before = elements_or_null<T>(before),
          .means = elements_or_null<Wide<T>>(rows.mean),
          .scales = elements<Wide<T>>(rows.scale),
          .dx = elements_or_null<T>(dx),
          .hidden = dy.size(1),
          .offset = static_cast<Wide<T>>(norm.offset)};
}

/// Sums over parts of `part_rows` rows, which `sums` takes; null where parameters do not train.
template <class T>
SumNormGradients<T> gradient_of_parameters(const at::Tensor& dy, const NormRows& rows,
                                           Wide<T>* sums, int64_t part_rows, int64_t part_columns) {
  return {.dy = elements<T>(dy),
          .x = elements<T>(rows.x),
          .means = elements_or_null<Wide<T>>(rows.mean),
          .scales = elements<Wide<T>>(rows.scale),
          .sums = sums,
          .rows = dy.size(0),
          .hidden = dy.size(1),
          .part_rows = part_rows,
          .part_columns = part_columns};
}

/// A row's gradient and its share of the parameters', while it is in the cache.
template <class T>
ZEA_WIDE_CLONES void backward_on_host(const detail::NormalizeRowBackward<T>& row_functor,
                                      const SumNormGradients<T>& sum_functor, int64_t begin,
                                      int64_t end) {
  const detail::NormalizeRowBackward<T> gradient = row_functor;  // no store can change them
  const SumNormGradients<T> sums = sum_functor;
  for (int64_t row = begin; row < end; ++row) {
    if (sums.sums) sums.add_row(detail::HostLane{}, row);
    if (gradient.dx) gradient(detail::HostLane{}, row);
  }
}

template <class T>
void backward_host(const detail::NormalizeRowBackward<T>& gradient, const at::Tensor& dy,
                   const NormRows& rows, const NormGradients& gradients) {
  const int64_t hidden = dy.size(1), step = rows_per_sum(hidden);
  const bool trains = gradients.weight.defined(), is_centred = rows.mean.defined();
  const detail::ChunkSums<Wide<T>> sums(trains ? detail::num_chunks(dy.size(0), step) : 0,
                                        (is_centred ? 2 : 1) * hidden);
  const auto shares =
      gradient_of_parameters<T>(dy, rows, trains ? sums.of_chunk(0) : nullptr, step, hidden);
  detail::for_each_chunk(
      dy.size(0),
      [&](int64_t, int64_t begin, int64_t end) { backward_on_host(gradient, shares, begin, end); },
      step);
  if (!trains) return;
  sums.add_to(gradients.weight, 0);
  if (is_centred) sums.add_to(gradients.bias, hidden);
}

/// Sums in as many parts as keep all of a device busy.
template <class T>
void add_parameter_gradients(const at::Tensor& dy, const NormRows& rows,
                             const NormGradients& gradients) {
  constexpr int64_t kMostParts = 128, kLeastRows = 16, kColumns = 128;
  const int64_t hidden = dy.size(1);
  const int64_t part_rows = std::max(kLeastRows, detail::num_chunks(dy.size(0), kMostParts));
  const int64_t parts = detail::num_chunks(dy.size(0), part_rows);
  const at::Tensor sums =
      at::empty({parts, rows.mean.defined() ? 2 : 1, hidden}, rows.scale.options());
  detail::launch_items(
      gradient_of_parameters<T>(dy, rows, elements<Wide<T>>(sums), part_rows, kColumns),
      parts * detail::num_chunks(hidden, kColumns), detail::num_packs(dy, kColumns),
      detail::stream_of(dy));
  const at::Tensor all = sums.sum(0);
  at::Tensor weight = gradients.weight, bias = gradients.bias;
  weight.add_(all[0]);
  if (rows.mean.defined()) bias.add_(all[1]);
}

}  // namespace

NormRows norm_forward(const at::Tensor& x, const at::Tensor& added, const NormParameters& norm) {
  if (!runs_kernels(x)) return norm_forward_reference(x, added, norm);
  ZEA_ASSERT(x.is_contiguous() && norm.weight.scalar_type() == x.scalar_type());
  ZEA_ASSERT(!added.defined() || (added.is_contiguous() && added.sizes() == x.sizes()));
  NormRows out{added.defined() ? at::empty_like(x) : x, at::empty_like(x), {}, {}};
  with_element_type(x, [&]<class T>(T) {
    const auto wide = x.options().dtype(c10::CppTypeToScalarType<Wide<T>>::value);
    out.scale = at::empty({x.size(0)}, wide);
    if (norm.bias.defined()) out.mean = at::empty({x.size(0)}, wide);
    const detail::NormalizeRow<T> functor{.x = elements<T>(x),
                                          .added = elements_or_null<T>(added),
                                          .weight = elements<T>(norm.weight),
                                          .bias = elements_or_null<T>(norm.bias),
                                          .sums = elements<T>(out.x),
                                          .y = elements<T>(out.y),
                                          .means = elements_or_null<Wide<T>>(out.mean),
                                          .scales = elements<Wide<T>>(out.scale),
                                          .hidden = x.size(1),
                                          .eps = static_cast<Wide<T>>(norm.eps),
                                          .offset = static_cast<Wide<T>>(norm.offset)};
    run_items(x, functor, x.size(0), x.size(1));
  });
  return out;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& before, const NormRows& rows,
                         const NormParameters& norm, const NormGradients& gradients) {
  if (!runs_kernels(dy)) return norm_backward_reference(dy, before, rows, norm, gradients);
  ZEA_ASSERT(dy.is_contiguous() && rows.x.is_contiguous());
  ZEA_ASSERT(!before.defined() || before.is_contiguous());
  ZEA_ASSERT(rows.mean.defined() == norm.bias.defined());
  const at::Tensor dx = gradients.needs_dx ? at::empty_like(dy) : at::Tensor();
  with_element_type(dy, [&]<class T>(T) {
    const auto functor = gradient_of_rows<T>(dy, before, rows, norm, dx);
    if (dy.is_cpu()) return backward_host<T>(functor, dy, rows, gradients);
    if (gradients.weight.defined()) add_parameter_gradients<T>(dy, rows, gradients);
    if (dx.defined()) run_items(dy, functor, dy.size(0), dy.size(1));
  });
  return dx;
}

}  // namespace zea
