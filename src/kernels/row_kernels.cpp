// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "kernels/row_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::runs_kernels;
using detail::Wide;
using detail::with_element_type;

/// Calls `visit` with the gate.
template <class Visit>
void with_gate(Gating gating, Visit visit) {
  if (gating == Gating::Silu) return visit(detail::SiluGate{});
  if (gating == Gating::Gelu) return visit(detail::ErfGate{});
  visit(detail::TanhGate{});
}

template <class T>
detail::Neighbors<T>* gates_of(const at::Tensor& x) {
  return reinterpret_cast<detail::Neighbors<T>*>(elements<T>(x));
}

}  // namespace

at::Tensor drop_elements(const at::Tensor& x, const at::Tensor& keys, const Dropout& dropout) {
  ZEA_ASSERT(keys.size(0) == x.size(0) && dropout.rate >= 0 && dropout.rate < 1);
  if (!runs_kernels(x)) return drop_elements_reference(x, keys, dropout);
  const int64_t width = x.size(1);
  const at::Tensor y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::DropRow<T> functor{.x = elements<T>(x),
                                     .keys = elements<int64_t>(keys),
                                     .y = elements<T>(y),
                                     .stream = dropout.stream,
                                     .least = static_cast<uint64_t>(dropout.rate * 0x1p53),
                                     .scale = static_cast<Wide<T>>(1 / (1 - dropout.rate)),
                                     .width = width,
                                     .first_column = dropout.first_column};
    run_items(x, functor, x.size(0), width);
  });
  return y;
}

at::Tensor send_rows(const at::Tensor& x, const at::Tensor& places, int64_t rows) {
  if (!runs_kernels(x)) return send_rows_reference(x, places, rows);
  ZEA_ASSERT(x.is_contiguous() && places.is_contiguous() && places.size(0) == x.size(0));
  const int64_t width = x.size(1);
  const at::Tensor y = at::empty({rows, width}, x.options());
  with_element_type(x, [&]<class T>(T) {
    const detail::SendRow<T> functor{elements<T>(x), elements<int64_t>(places), elements<T>(y),
                                     places.size(1), width};
    run_items(x, functor, places.numel(), width);
  });
  return y;
}

at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& places, const at::Tensor& gates) {
  if (!runs_kernels(y)) return combine_rows_reference(y, places, gates);
  ZEA_ASSERT(y.is_contiguous() && places.is_contiguous() && places.numel() >= y.size(0));
  const int64_t tokens = places.size(0), width = y.size(1);
  const bool is_zeroed = y.is_cpu() && y.scalar_type() != at::kBFloat16;
  const at::Tensor x =
      is_zeroed ? at::zeros({tokens, width}, y.options()) : at::empty({tokens, width}, y.options());
  with_element_type(y, [&]<class T>(T) {
    const detail::CombineRows<T> functor{elements<T>(y),
                                         elements<int64_t>(places),
                                         gates.defined() ? elements<Wide<T>>(gates) : nullptr,
                                         elements<T>(x),
                                         places.size(1),
                                         width};
    run_items(y, functor, tokens, places.size(1) * width);
  });
  return x;
}

CombinedGradients combine_rows_backward(const at::Tensor& dx, const at::Tensor& y,
                                        const at::Tensor& places, const at::Tensor& gates) {
  if (!runs_kernels(y)) return combine_rows_backward_reference(dx, y, places, gates);
  ZEA_ASSERT(dx.is_contiguous() && y.is_contiguous() && places.is_contiguous());
  const CombinedGradients made{at::empty_like(y), at::empty_like(gates)};
  with_element_type(y, [&]<class T>(T) {
    const detail::CombineRowBackward<T> functor{elements<T>(dx),
                                                elements<T>(y),
                                                elements<int64_t>(places),
                                                elements<Wide<T>>(gates),
                                                elements<T>(made.dy),
                                                elements<Wide<T>>(made.dgates),
                                                places.size(1),
                                                y.size(1)};
    run_items(y, functor, places.numel(), 3 * y.size(1));
  });
  return made;
}

at::Tensor gated_forward(const at::Tensor& x, Gating gating) {
  if (!runs_kernels(x)) return gated_forward_reference(x, gating);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor y = at::empty({rows, width}, x.options());
  with_element_type(x, [&]<class T>(T) {
    with_gate(gating, [&]<class Gate>(Gate) {
      run_items(x, detail::GatedRow<Gate, T>{elements<T>(x), elements<T>(y), width}, rows,
                2 * width);
    });
  });
  return y;
}

at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Gating gating) {
  if (!runs_kernels(x)) return gated_backward_reference(dy, x, gating);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    with_gate(gating, [&]<class Gate>(Gate) {
      const detail::GatedRowBackward<Gate, T> functor{elements<T>(dy), elements<T>(x),
                                                      elements<T>(dx), width};
      run_items(x, functor, rows, 2 * width);
    });
  });
  return dx;
}

at::Tensor clamped_gate_forward(const at::Tensor& x, double alpha, double limit) {
  if (!runs_kernels(x)) return clamped_gate_forward_reference(x, alpha, limit);
  ZEA_ASSERT(x.is_contiguous());
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor y = at::empty({rows, width}, x.options());
  with_element_type(x, [&]<class T>(T) {
    const detail::ClampedGateRow<T> functor{gates_of<T>(x), elements<T>(y),
                                            static_cast<Wide<T>>(alpha),
                                            static_cast<Wide<T>>(limit), width};
    run_items(x, functor, rows, width);
  });
  return y;
}

at::Tensor clamped_gate_backward(const at::Tensor& dy, const at::Tensor& x, double alpha,
                                 double limit) {
  if (!runs_kernels(x)) return clamped_gate_backward_reference(dy, x, alpha, limit);
  ZEA_ASSERT(x.is_contiguous() && dy.is_contiguous());
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const detail::ClampedGateRowBackward<T> functor{elements<T>(dy),
                                                    gates_of<T>(x),
                                                    gates_of<T>(dx),
                                                    static_cast<Wide<T>>(alpha),
                                                    static_cast<Wide<T>>(limit),
                                                    width};
    run_items(x, functor, rows, width);
  });
  return dx;
}

void scale_rows(const at::Tensor& x, const at::Tensor& factors) {
  if (!runs_kernels(x)) return scale_rows_reference(x, factors);
  ZEA_ASSERT(x.is_contiguous() && factors.is_contiguous() && factors.numel() == x.size(0));
  with_element_type(x, [&]<class T>(T) {
    run_items(x, detail::ScaleRow<T>{elements<T>(x), elements<Wide<T>>(factors), x.size(1)},
              x.size(0), x.size(1));
  });
}

at::Tensor row_dots(const at::Tensor& x, const at::Tensor& y) {
  if (!runs_kernels(x)) return row_dots_reference(x, y);
  ZEA_ASSERT(x.is_contiguous() && y.is_contiguous() && x.sizes() == y.sizes());
  at::Tensor dots;
  with_element_type(x, [&]<class T>(T) {
    constexpr at::ScalarType type = c10::CppTypeToScalarType<Wide<T>>::value;
    dots = at::empty({x.size(0)}, x.options().dtype(type));
    run_items(x,
              detail::RowDot<T>{elements<T>(x), elements<T>(y), elements<Wide<T>>(dots), x.size(1)},
              x.size(0), 2 * x.size(1));
  });
  return dots;
}

void rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads, bool backwards, bool of_neighbors) {
  if (!runs_kernels(x))
    return rotate_heads_reference(x, cosines, sines, heads, backwards, of_neighbors);
  ZEA_ASSERT(cosines.scalar_type() == x.scalar_type() && cosines.is_contiguous());
  ZEA_ASSERT(x.is_contiguous() && heads > 0);
  // A core of the host takes a token; a device has more lanes than there are tokens.
  const int64_t items = x.is_cpu() ? 1 : heads;
  with_element_type(x, [&]<class T>(T) {
    const auto rotate = [&]<class Functor>(Functor functor) {
      functor = {.x = elements<T>(x),
                 .cosines = elements<T>(cosines),
                 .sines = elements<T>(sines),
                 .sign = static_cast<Wide<T>>(backwards ? -1 : 1),
                 .all_heads = x.size(1),
                 .heads = heads / items,
                 .items = items,
                 .dim = x.size(2),
                 .half = cosines.size(-1),
                 .parts = cosines.dim() == 3 ? cosines.size(1) : 1};
      run_items(x, functor, x.size(0) * items, functor.heads * functor.half);
    };
    if (of_neighbors)
      rotate(detail::RotateHeads<T, true>{});
    else
      rotate(detail::RotateHeads<T>{});
  });
}

}  // namespace zea
