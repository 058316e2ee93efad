// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/row_kernels.hpp"

#include <cstring>

#include "elements.hpp"
#include "launch.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::load;
using detail::store;
using detail::Wide;
using detail::with_element_type;

constexpr double kQuickGeluSlope = 1.702;

bool by_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() != at::kHalf;
}

template <class T>
ZEA_WIDE_CLONES void normalise_row(const T* __restrict x, const T* __restrict w, T* __restrict y,
                                   Wide<T>& scale, int64_t hidden, Wide<T> eps) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < hidden; ++i) sum += load(x[i]) * load(x[i]);
  const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(hidden) + eps);
  scale = r;
  for (int64_t i = 0; i < hidden; ++i) store(y[i], load(x[i]) * r * load(w[i]));
}

template <class T>
ZEA_WIDE_CLONES void normalise_row_backward(const T* __restrict dy, const T* __restrict x,
                                            const T* __restrict w, Wide<T> r, int64_t hidden,
                                            T* __restrict dx) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < hidden; ++i) sum += load(dy[i]) * load(w[i]) * load(x[i]);
  const Wide<T> mean = sum * r / static_cast<Wide<T>>(hidden);
  for (int64_t i = 0; i < hidden; ++i)
    store(dx[i], r * (load(dy[i]) * load(w[i]) - load(x[i]) * r * mean));
}

template <class T>
ZEA_WIDE_CLONES void add_weight_gradient(const T* __restrict dy, const T* __restrict x, Wide<T> r,
                                         int64_t hidden, Wide<T>* __restrict sum) {
  for (int64_t i = 0; i < hidden; ++i) sum[i] += load(dy[i]) * load(x[i]) * r;
}

template <class T>
ZEA_WIDE_CLONES void swiglu_row(const T* __restrict gate, const T* __restrict up, T* __restrict y,
                                int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const Wide<T> g = load(gate[i]);
    store(y[i], g * detail::sigmoid(g) * load(up[i]));
  }
}

template <class T>
ZEA_WIDE_CLONES void swiglu_row_backward(const T* __restrict dy, const T* __restrict gate,
                                         const T* __restrict up, T* __restrict dgate,
                                         T* __restrict dup, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const Wide<T> g = load(gate[i]), d = load(dy[i]), s = detail::sigmoid(g);
    store(dgate[i], d * load(up[i]) * s * (1 + g * (1 - s)));
    store(dup[i], d * g * s);
  }
}

template <class T>
ZEA_WIDE_CLONES void quick_gelu_run(const T* __restrict x, T* __restrict y, int64_t count) {
  constexpr Wide<T> slope = static_cast<Wide<T>>(kQuickGeluSlope);
  for (int64_t i = 0; i < count; ++i) {
    const Wide<T> value = load(x[i]);
    store(y[i], value * detail::sigmoid(slope * value));
  }
}

template <class T>
ZEA_WIDE_CLONES void quick_gelu_run_backward(const T* __restrict dy, const T* __restrict x,
                                             T* __restrict dx, int64_t count) {
  constexpr Wide<T> slope = static_cast<Wide<T>>(kQuickGeluSlope);
  for (int64_t i = 0; i < count; ++i) {
    const Wide<T> value = load(x[i]), s = detail::sigmoid(slope * value);
    store(dx[i], load(dy[i]) * (s + slope * value * s * (1 - s)));
  }
}

template <class T>
void rotate_head(const T* __restrict x, const T* __restrict cosines, const T* __restrict sines,
                 Wide<T> sign, int64_t half, T* __restrict y) {
  for (int64_t i = 0; i < half; ++i) {
    const Wide<T> c = load(cosines[i]), s = sign * load(sines[i]);
    const Wide<T> first = load(x[i]), second = load(x[half + i]);
    store(y[i], first * c - second * s);
    store(y[half + i], second * c + first * s);
  }
}

template <class T>
void add_all_weight_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& dweight) {
  const int64_t rows = x.size(0), hidden = x.size(1), step = rows_per_chunk(hidden);
  // A sum for each call of the functor, added up in order: the same with any number of threads.
  const at::Tensor sums = at::zeros({detail::num_chunks(rows, step), hidden}, scale.options());
  detail::for_each_chunk(
      rows,
      [&](int64_t chunk, int64_t begin, int64_t end) {
        Wide<T>* sum = elements<Wide<T>>(sums) + chunk * hidden;
        for (int64_t row = begin; row < end; ++row)
          add_weight_gradient(elements<T>(dy) + row * hidden, elements<T>(x) + row * hidden,
                              elements<Wide<T>>(scale)[row], hidden, sum);
      },
      step);
  dweight.add_(sums.sum(0));
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps) {
  if (!by_kernel(x)) return rms_norm_forward_reference(x, weight, eps);
  ZEA_ASSERT(weight.scalar_type() == x.scalar_type());
  const int64_t rows = x.size(0), hidden = x.size(1);
  const at::Tensor y = at::empty_like(x);
  at::Tensor scale;
  with_element_type(x, [&]<class T>(T) {
    scale = at::empty({rows}, x.options().dtype(c10::CppTypeToScalarType<Wide<T>>::value));
    detail::for_each_chunk(
        rows,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            normalise_row(elements<T>(x) + row * hidden, elements<T>(weight),
                          elements<T>(y) + row * hidden, elements<Wide<T>>(scale)[row], hidden,
                          static_cast<Wide<T>>(eps));
        },
        rows_per_chunk(hidden));
  });
  return {y, scale};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& weight, bool needs_dx, const at::Tensor& dweight) {
  if (!by_kernel(x)) return rms_norm_backward_reference(dy, x, scale, weight, needs_dx, dweight);
  const int64_t rows = x.size(0), hidden = x.size(1);
  const at::Tensor dx = needs_dx ? at::empty_like(x) : at::Tensor();
  with_element_type(x, [&]<class T>(T) {
    if (dweight.defined()) add_all_weight_gradients<T>(dy, x, scale, dweight);
    if (!needs_dx) return;
    detail::for_each_chunk(
        rows,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row)
            normalise_row_backward(elements<T>(dy) + row * hidden, elements<T>(x) + row * hidden,
                                   elements<T>(weight), elements<Wide<T>>(scale)[row], hidden,
                                   elements<T>(dx) + row * hidden);
        },
        rows_per_chunk(hidden));
  });
  return dx;
}

at::Tensor swiglu_forward(const at::Tensor& x) {
  if (!by_kernel(x)) return swiglu_forward_reference(x);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor y = at::empty({rows, width}, x.options());
  with_element_type(x, [&]<class T>(T) {
    detail::for_each_chunk(
        rows,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const T* gate = elements<T>(x) + row * 2 * width;
            swiglu_row(gate, gate + width, elements<T>(y) + row * width, width);
          }
        },
        rows_per_chunk(2 * width));
  });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& x) {
  if (!by_kernel(x)) return swiglu_backward_reference(dy, x);
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    detail::for_each_chunk(
        rows,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const T* gate = elements<T>(x) + row * 2 * width;
            T* dgate = elements<T>(dx) + row * 2 * width;
            swiglu_row_backward(elements<T>(dy) + row * width, gate, gate + width, dgate,
                                dgate + width, width);
          }
        },
        rows_per_chunk(2 * width));
  });
  return dx;
}

at::Tensor quick_gelu_forward(const at::Tensor& x) {
  if (!by_kernel(x)) return quick_gelu_forward_reference(x);
  const at::Tensor y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    detail::for_each_chunk(x.numel(), [&](int64_t, int64_t begin, int64_t end) {
      quick_gelu_run(elements<T>(x) + begin, elements<T>(y) + begin, end - begin);
    });
  });
  return y;
}

at::Tensor quick_gelu_backward(const at::Tensor& dy, const at::Tensor& x) {
  if (!by_kernel(x)) return quick_gelu_backward_reference(dy, x);
  const at::Tensor dx = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    detail::for_each_chunk(x.numel(), [&](int64_t, int64_t begin, int64_t end) {
      quick_gelu_run_backward(elements<T>(dy) + begin, elements<T>(x) + begin,
                              elements<T>(dx) + begin, end - begin);
    });
  });
  return dx;
}

at::Tensor rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                        int64_t heads, bool backwards) {
  if (!by_kernel(x)) return rotate_heads_reference(x, cosines, sines, heads, backwards);
  ZEA_ASSERT(cosines.scalar_type() == x.scalar_type() && cosines.is_contiguous());
  const int64_t tokens = x.size(0), all = x.size(1), dim = x.size(2), half = dim / 2;
  const at::Tensor y = at::empty_like(x);
  with_element_type(x, [&]<class T>(T) {
    const auto rotate_token = [&](int64_t token) {
      const T* source = elements<T>(x) + token * all * dim;
      T* target = elements<T>(y) + token * all * dim;
      for (int64_t head = 0; head < heads; ++head)
        rotate_head(source + head * dim, elements<T>(cosines) + token * half,
                    elements<T>(sines) + token * half, static_cast<Wide<T>>(backwards ? -1 : 1),
                    half, target + head * dim);
      std::memcpy(target + heads * dim, source + heads * dim, (all - heads) * dim * sizeof(T));
    };
    detail::for_each_chunk(
        tokens,
        [&](int64_t, int64_t begin, int64_t end) {
          for (int64_t token = begin; token < end; ++token) rotate_token(token);
        },
        rows_per_chunk(all * dim));
  });
  return y;
}

}  // namespace zea
