// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/row_kernels.hpp"

#include "row_functors.hpp"
#include "run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::runs_kernels;
using detail::Wide;
using detail::with_element_type;

/// Rows of which one core sums the weight gradient, row by row: what it adds to stays in its cache.
template <class T>
ZEA_WIDE_CLONES void add_weight_gradients(const T* __restrict dy, const T* __restrict x,
                                          const Wide<T>* __restrict scales, int64_t rows,
                                          int64_t hidden, Wide<T>* __restrict sum) {
  for (int64_t row = 0; row < rows; ++row, dy += hidden, x += hidden)
    for (int64_t i = 0; i < hidden; ++i)
      sum[i] += detail::SumWeightGradient<T>::weight_gradient(dy[i], x[i], scales[row]);
}

/// Sums over rows in fixed parts, to be added in order: the same with any number of threads.
template <class T>
at::Tensor host_parts(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale) {
  const int64_t rows = x.size(0), hidden = x.size(1), step = rows_per_chunk(hidden);
  const at::Tensor sums = at::zeros({detail::num_chunks(rows, step), hidden}, scale.options());
  detail::for_each_chunk(
      rows,
      [&](int64_t chunk, int64_t begin, int64_t end) {
        add_weight_gradients(elements<T>(dy) + begin * hidden, elements<T>(x) + begin * hidden,
                             elements<Wide<T>>(scale) + begin, end - begin, hidden,
                             elements<Wide<T>>(sums) + chunk * hidden);
      },
      step);
  return sums;
}

/// On a device as many parts as keep all of it busy.
template <class T>
at::Tensor device_parts(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale) {
  constexpr int64_t kMostParts = 128, kLeastRows = 16, kColumns = 128;
  const int64_t rows = x.size(0), hidden = x.size(1);
  const int64_t part_rows = std::max(kLeastRows, detail::num_chunks(rows, kMostParts));
  const int64_t parts = detail::num_chunks(rows, part_rows);
  const at::Tensor sums = at::empty({parts, hidden}, scale.options());
  const detail::SumWeightGradient<T> functor{.dy = elements<T>(dy),
                                             .x = elements<T>(x),
                                             .scales = elements<Wide<T>>(scale),
                                             .sums = elements<Wide<T>>(sums),
                                             .rows = rows,
                                             .hidden = hidden,
                                             .part_rows = part_rows,
                                             .part_columns = kColumns};
  run_items(x, functor, parts * detail::num_chunks(hidden, kColumns), kColumns);
  return sums;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps) {
  if (!runs_kernels(x)) return rms_norm_forward_reference(x, weight, eps);
  ZEA_ASSERT(weight.scalar_type() == x.scalar_type());
  const int64_t rows = x.size(0), hidden = x.size(1);
  const at::Tensor y = at::empty_like(x);
  at::Tensor scale;
  with_element_type(x, [&]<class T>(T) {
    scale = at::empty({rows}, x.options().dtype(c10::CppTypeToScalarType<Wide<T>>::value));
    const detail::NormaliseRow<T> functor{.x = elements<T>(x),
                                          .weight = elements<T>(weight),
                                          .y = elements<T>(y),
                                          .scales = elements<Wide<T>>(scale),
                                          .hidden = hidden,
                                          .eps = static_cast<Wide<T>>(eps)};
    run_items(x, functor, rows, hidden);
  });
  return {y, scale};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& weight, bool needs_dx, const at::Tensor& dweight) {
  if (!runs_kernels(x)) return rms_norm_backward_reference(dy, x, scale, weight, needs_dx, dweight);
  const int64_t rows = x.size(0), hidden = x.size(1);
  const at::Tensor dx = needs_dx ? at::empty_like(x) : at::Tensor();
  with_element_type(x, [&]<class T>(T) {
    if (dweight.defined())
      dweight.add_(
          (x.is_cpu() ? host_parts<T>(dy, x, scale) : device_parts<T>(dy, x, scale)).sum(0));
    if (!needs_dx) return;
    const detail::NormaliseRowBackward<T> functor{.dy = elements<T>(dy),
                                                  .x = elements<T>(x),
                                                  .weight = elements<T>(weight),
                                                  .scales = elements<Wide<T>>(scale),
                                                  .dx = elements<T>(dx),
                                                  .hidden = hidden};
    run_items(x, functor, rows, hidden);
  });
  return dx;
}

at::Tensor swiglu_forward(const at::Tensor& x) {
  if (!runs_kernels(x)) return swiglu_forward_reference(x);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor y = at::empty({rows, width}, x.options());
  with_element_type(x, [&]<class T>(T) {
    run_items(x, detail::SwigluRow<T>{elements<T>(x), elements<T>(y), width}, rows, 2 * width);
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& x) {
  if (!runs_kernels(x)) return swiglu_backward_reference(dy, x);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::SwigluRowBackward<T> functor{elements<T>(dy), elements<T>(x), elements<T>(dx),
                                               width};
    run_items(x, functor, rows, 2 * width);
  });
  return dx;
}

at::Tensor quick_gelu_forward(const at::Tensor& x) {
  if (!runs_kernels(x)) return quick_gelu_forward_reference(x);
  const at::Tensor y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::QuickGeluChunk<T> functor{elements<T>(x), elements<T>(y), x.numel()};
    run_items(x, functor, detail::num_chunks(x.numel()), kChunkElements);
  });
  return y;
}

at::Tensor quick_gelu_backward(const at::Tensor& dy, const at::Tensor& x) {
  if (!runs_kernels(x)) return quick_gelu_backward_reference(dy, x);
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::QuickGeluChunkBackward<T> functor{elements<T>(dy), elements<T>(x),
                                                    elements<T>(dx), x.numel()};
    run_items(x, functor, detail::num_chunks(x.numel()), kChunkElements);
  });
  return dx;
}

at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                        int64_t heads, bool backwards) {
  if (!runs_kernels(x)) return rotate_heads_reference(x, cosines, sines, heads, backwards);
  ZEA_ASSERT(cosines.scalar_type() == x.scalar_type() && cosines.is_contiguous());
  const int64_t tokens = x.size(0), all = x.size(1), dim = x.size(2);
  const at::Tensor y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::RotateHead<T> functor{.x = elements<T>(x),
                                        .cosines = elements<T>(cosines),
                                        .sines = elements<T>(sines),
                                        .y = elements<T>(y),
                                        .sign = static_cast<Wide<T>>(backwards ? -1 : 1),
                                        .all_heads = all,
                                        .heads = heads,
                                        .dim = dim};
    run_items(x, functor, tokens * all, dim);
  });
  return y;
}

}  // namespace zea
