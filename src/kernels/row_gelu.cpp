// SPDX-License-Identifier: Apache-2.0
// GELU and its approximations, with the bias of the linear in front of them folded in: each is x
// times a gate between 0 and 1.
#include "zea/kernels/row_gelu.hpp"

#include "chunk_sums.hpp"
#include "zea/kernels/row_kernels.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::load;
using detail::store;
using detail::Wide;

/// A gate, and the slope of x gate(x).
template <class W>
struct Gated {
  W gate, slope;
};

struct QuickGate {
  template <class W>
  [[gnu::always_inline]] static inline Gated<W> at(W x) {
    constexpr W steepness = static_cast<W>(1.702);
    const W s = detail::sigmoid(steepness * x);
    return {s, s + steepness * x * s * (1 - s)};
  }
};

/// (1 + tanh(u)) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGate {
  template <class W>
  [[gnu::always_inline]] static inline Gated<W> at(W x) {
    constexpr W twice = static_cast<W>(1.5957691216057308), cubic = static_cast<W>(0.044715);
    const W s = detail::sigmoid(twice * (x + cubic * x * x * x));
    return {s, s + x * s * (1 - s) * twice * (1 + 3 * cubic * x * x)};
  }
};

/// Half of erfc(|z|), which is also exp(-z^2) times a polynomial of 1 / (1 + p |z|) within 1.5e-7
/// (Abramowitz and Stegun, 7.1.26).
[[gnu::always_inline]] inline float half_erfc(float z, float bell) {
  const float t = 1 / (1 + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  return 0.5f * p * t * bell;
}
inline double half_erfc(double z, double) {
  return 0.5 * std::erfc(z);
}

struct ErfGate {
  template <class W>
  [[gnu::always_inline]] static inline Gated<W> at(W x) {
    const W size = x < 0 ? -x : x;
    const W bell = detail::exponential(W(-0.5) * x * x);
    const W tail = half_erfc(size * static_cast<W>(0.70710678118654752), bell);
    const W gate = x < 0 ? tail : 1 - tail;
    return {gate, gate + x * bell * static_cast<W>(0.39894228040143268)};
  }
};

template <class Gate, class T>
ZEA_WIDE_CLONES void forward_run(const T* __restrict x, const T* __restrict bias, T* __restrict y,
                                 int64_t count) {
  using W = Wide<T>;
  if (bias)
    for (int64_t i = 0; i < count; ++i) {
      const W value = load(x[i]) + load(bias[i]);
      store(y[i], value * Gate::at(value).gate);
    }
  else
    for (int64_t i = 0; i < count; ++i) {
      const W value = load(x[i]);
      store(y[i], value * Gate::at(value).gate);
    }
}

template <class Gate, class T>
ZEA_WIDE_CLONES void backward_run(const T* __restrict dy, const T* __restrict x,
                                  const T* __restrict bias, T* __restrict dx, int64_t count) {
  if (bias)
    for (int64_t i = 0; i < count; ++i)
      store(dx[i], load(dy[i]) * Gate::at(load(x[i]) + load(bias[i])).slope);
  else
    for (int64_t i = 0; i < count; ++i) store(dx[i], load(dy[i]) * Gate::at(load(x[i])).slope);
}

template <class T>
ZEA_WIDE_CLONES void add_run(const T* __restrict dx, Wide<T>* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += load(dx[i]);
}

template <class Gate, class T>
void forward_host(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& y) {
  const T* b = bias.defined() ? elements<const T>(bias) : nullptr;
  // Without a bias rows are of no matter.
  const int64_t width = b ? x.size(-1) : x.numel();
  const int64_t step = b ? rows_per_chunk(width) * width : kChunkElements;
  detail::for_each_chunk(
      x.numel(),
      [&](int64_t, int64_t begin, int64_t end) {
        const int64_t run = b ? width : end - begin;
        for (int64_t at = begin; at < end; at += run)
          forward_run<Gate>(elements<T>(x) + at, b, elements<T>(y) + at, run);
      },
      step);
}

template <class Gate, class T>
void backward_host(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                   const at::Tensor& dx, const at::Tensor& dbias) {
  const int64_t rows = x.size(0), width = x.size(1), step = rows_per_sum(width);
  const bool trains = dbias.defined();
  const T* b = bias.defined() ? elements<const T>(bias) : nullptr;
  const detail::ChunkSums<Wide<T>> sums(trains ? detail::num_chunks(rows, step) : 0, width);
  detail::for_each_chunk(
      rows,
      [&](int64_t chunk, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          T* target = elements<T>(dx) + row * width;
          backward_run<Gate>(elements<T>(dy) + row * width, elements<T>(x) + row * width, b, target,
                             width);
          if (trains) add_run(target, sums.of_chunk(chunk), width);
        }
      },
      step);
  if (trains) sums.add_to(dbias, 0);
}

/// Calls `visit(Gate{}, T{})`.
template <class Visit>
void with_gate(Gelu kind, const at::Tensor& x, Visit visit) {
  detail::with_element_type(x, [&]<class T>(T type) {
    switch (kind) {
      case Gelu::Erf:
        return visit(ErfGate{}, type);
      case Gelu::Tanh:
        return visit(TanhGate{}, type);
      case Gelu::Quick:
        return visit(QuickGate{}, type);
    }
  });
}

bool by_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() != at::kHalf;
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Gelu kind) {
  if (!by_kernel(x)) return gelu_forward_reference(x, bias, kind);
  ZEA_ASSERT(x.is_contiguous() && (!bias.defined() || bias.scalar_type() == x.scalar_type()));
  const at::Tensor y = at::empty_like(x);
  with_gate(kind, x, [&]<class Gate, class T>(Gate, T) { forward_host<Gate, T>(x, bias, y); });
  return y;
}

at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                         Gelu kind, const at::Tensor& dbias) {
  if (!by_kernel(x)) return gelu_backward_reference(dy, x, bias, kind, dbias);
  ZEA_ASSERT(dy.is_contiguous() && x.is_contiguous() && x.dim() == 2);
  const at::Tensor dx = at::empty_like(x);
  with_gate(kind, x,
            [&]<class Gate, class T>(Gate, T) { backward_host<Gate, T>(dy, x, bias, dx, dbias); });
  return dx;
}

at::Tensor gelu_forward_reference(const at::Tensor& x, const at::Tensor& bias, Gelu kind) {
  const at::Tensor sum = bias.defined() ? x + bias : x;
  if (kind == Gelu::Quick) return quick_gelu_forward(sum);
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

}  // namespace zea
