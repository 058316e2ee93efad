// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include <ATen/ops/empty_like.h>

#include "kernels/row_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::GeluRunBackward;
using detail::run_items;
using detail::runs_kernels;
using detail::Wide;

/// Calls `visit(Gate{}, T{})`.
template <class Visit>
void with_gate(Gelu kind, const at::Tensor& x, Visit visit) {
  detail::with_element_type(x, [&]<class T>(T type) {
    switch (kind) {
      case Gelu::Erf:
        return visit(detail::ErfGate{}, type);
      case Gelu::Tanh:
        return visit(detail::TanhGate{}, type);
      case Gelu::Quick:
        return visit(detail::QuickGate{}, type);
    }
  });
}

/// Without a bias rows are of no matter.
int64_t run_width(const at::Tensor& bias) {
  return bias.defined() ? bias.numel() : kChunkElements;
}

/// Computes rows and adds them to the bias's gradient while each is in the cache.
template <class Gate, class T>
ZEA_WIDE_CLONES void backward_rows(const GeluRunBackward<Gate, T>& functor, Wide<T>* __restrict sum,
                                   int64_t begin, int64_t end) {
  const GeluRunBackward<Gate, T> own = functor;  // no store can change it
  for (int64_t row = begin; row < end; ++row) {
    own(detail::HostLane{}, row);
    const T* __restrict dx = own.dx + row * own.width;
    for (int64_t i = 0; i < own.width; ++i) sum[i] += detail::load(dx[i]);
  }
}

template <class Gate, class T>
void backward_with_sums(const GeluRunBackward<Gate, T>& functor, int64_t rows,
                        const at::Tensor& dbias) {
  const int64_t step = rows_per_sum(functor.width);
  const detail::ChunkSums<Wide<T>> sums(detail::num_chunks(rows, step), functor.width);
  detail::for_each_chunk(
      rows,
      [&](int64_t chunk, int64_t begin, int64_t end) {
        backward_rows(functor, sums.of_chunk(chunk), begin, end);
      },
      step);
  sums.add_to(dbias, 0);
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Gelu kind) {
  if (!runs_kernels(x)) return gelu_forward_reference(x, bias, kind);
  ZEA_ASSERT(x.is_contiguous() && (!bias.defined() || bias.scalar_type() == x.scalar_type()));
  const at::Tensor y = at::empty_like(x);
  const int64_t width = run_width(bias);
  with_gate(kind, x, [&]<class Gate, class T>(Gate, T) {
    const detail::GeluRun<Gate, T> functor{.x = elements<T>(x),
                                           .bias = bias.defined() ? elements<T>(bias) : nullptr,
                                           .y = elements<T>(y),
                                           .elements = x.numel(),
                                           .width = width};
    run_items(x, functor, detail::num_chunks(x.numel(), width), width);
  });
  return y;
}

at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                         Gelu kind, const at::Tensor& dbias) {
  if (!runs_kernels(x)) return gelu_backward_reference(dy, x, bias, kind, dbias);
  ZEA_ASSERT(dy.is_contiguous() && x.is_contiguous() && x.dim() == 2);
  ZEA_ASSERT(!dbias.defined() || bias.defined());
  const at::Tensor dx = at::empty_like(x);
  const int64_t width = run_width(bias);
  with_gate(kind, x, [&]<class Gate, class T>(Gate, T) {
    const GeluRunBackward<Gate, T> functor{.dy = elements<T>(dy),
                                           .x = elements<T>(x),
                                           .bias = bias.defined() ? elements<T>(bias) : nullptr,
                                           .dx = elements<T>(dx),
                                           .elements = x.numel(),
                                           .width = width};
    if (dbias.defined() && x.is_cpu()) return backward_with_sums(functor, x.size(0), dbias);
    run_items(x, functor, detail::num_chunks(x.numel(), width), width);
    if (dbias.defined()) add_column_sums(dbias, dx);
  });
  return dx;
}

}  // namespace zea
