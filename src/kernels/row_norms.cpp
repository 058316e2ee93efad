// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/row_norms.hpp"

#include <tuple>

#include "chunk_sums.hpp"
#include "zea/kernels/row_kernels.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::load;
using detail::store;
using detail::Wide;
using detail::with_element_type;

bool by_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() != at::kHalf;
}

template <class T>
ZEA_WIDE_CLONES void add_row(const T* __restrict x, const T* __restrict added, T* __restrict sum,
                             int64_t hidden) {
  for (int64_t i = 0; i < hidden; ++i) store(sum[i], load(x[i]) + load(added[i]));
}

template <class T>
ZEA_WIDE_CLONES Wide<T> mean_of_row(const T* __restrict x, int64_t hidden) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < hidden; ++i) sum += load(x[i]);
  return sum / static_cast<Wide<T>>(hidden);
}

/// y = (x - mean) scale w + b; returns the scale. Without `b` there is no mean either.
template <class T>
ZEA_WIDE_CLONES Wide<T> normalise_row(const T* __restrict x, const T* __restrict w,
                                      const T* __restrict b, T* __restrict y, int64_t hidden,
                                      Wide<T> mean, Wide<T> eps) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < hidden; ++i) sum += (load(x[i]) - mean) * (load(x[i]) - mean);
  const Wide<T> r = 1 / std::sqrt(sum / static_cast<Wide<T>>(hidden) + eps);
  if (b)
    for (int64_t i = 0; i < hidden; ++i)
      store(y[i], (load(x[i]) - mean) * r * load(w[i]) + load(b[i]));
  else
    for (int64_t i = 0; i < hidden; ++i) store(y[i], load(x[i]) * r * load(w[i]));
  return r;
}

/// dx = r (dy w - m1 - n m2) + before, n = (x - mean) r, m1 = mean(dy w) of a layer norm and 0 of
/// RMSNorm, m2 = mean(dy w n). `before` may be null.
template <class T>
ZEA_WIDE_CLONES void normalise_row_backward(const T* __restrict dy, const T* __restrict x,
                                            const T* __restrict w, const T* __restrict before,
                                            T* __restrict dx, int64_t hidden, Wide<T> mean,
                                            Wide<T> r, bool is_centred) {
  Wide<T> plain = 0, along = 0;
#pragma omp simd reduction(+ : plain, along)
  for (int64_t i = 0; i < hidden; ++i) {
    const Wide<T> d = load(dy[i]) * load(w[i]);
    plain += d;
    along += d * (load(x[i]) - mean);
  }
  const Wide<T> count = static_cast<Wide<T>>(hidden);
  const Wide<T> shift = is_centred ? plain / count : 0, slope = along * r * r / count;
  if (before)
    for (int64_t i = 0; i < hidden; ++i)
      store(dx[i],
            load(before[i]) + r * (load(dy[i]) * load(w[i]) - shift - (load(x[i]) - mean) * slope));
  else
    for (int64_t i = 0; i < hidden; ++i)
      store(dx[i], r * (load(dy[i]) * load(w[i]) - shift - (load(x[i]) - mean) * slope));
}

template <class T>
ZEA_WIDE_CLONES void add_parameter_gradients(const T* __restrict dy, const T* __restrict x,
                                             int64_t hidden, Wide<T> mean, Wide<T> r,
                                             Wide<T>* __restrict dweight, Wide<T>* __restrict dbias,
                                             bool has_bias) {
  for (int64_t i = 0; i < hidden; ++i) dweight[i] += load(dy[i]) * (load(x[i]) - mean) * r;
  if (!has_bias) return;
  for (int64_t i = 0; i < hidden; ++i) dbias[i] += load(dy[i]);
}

template <class T>
const T* elements_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? elements<const T>(tensor) : nullptr;
}

/// Calls `visit(chunk, row)` for all rows.
template <class Visit>
void for_rows(int64_t rows, int64_t step, Visit visit) {
  detail::for_each_chunk(
      rows,
      [&](int64_t chunk, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) visit(chunk, row);
      },
      step);
}

template <class T>
void forward_host(const at::Tensor& x, const at::Tensor& added, const NormParameters& norm,
                  const NormRows& out) {
  const int64_t hidden = x.size(1);
  const T *w = elements<T>(norm.weight), *b = elements_or_null<T>(norm.bias);
  const T *terms = elements<T>(x), *more = elements_or_null<T>(added);
  T *sums = elements<T>(out.x), *y = elements<T>(out.y);
  Wide<T>* means = out.mean.defined() ? elements<Wide<T>>(out.mean) : nullptr;
  Wide<T>* scales = elements<Wide<T>>(out.scale);
  for_rows(x.size(0), rows_per_chunk(hidden), [&](int64_t, int64_t row) {
    const int64_t at = row * hidden;
    if (more) add_row(terms + at, more + at, sums + at, hidden);
    const Wide<T> mean = means ? mean_of_row(sums + at, hidden) : 0;
    if (means) means[row] = mean;
    scales[row] =
        normalise_row(sums + at, w, b, y + at, hidden, mean, static_cast<Wide<T>>(norm.eps));
  });
}

template <class T>
void backward_host(const at::Tensor& dy, const at::Tensor& before, const NormRows& rows,
                   const NormParameters& norm, const NormGradients& gradients,
                   const at::Tensor& dx) {
  const int64_t hidden = dy.size(1), step = rows_per_sum(hidden);
  const bool trains = gradients.weight.defined(), has_bias = norm.bias.defined();
  const detail::ChunkSums<Wide<T>> sums(trains ? detail::num_chunks(dy.size(0), step) : 0,
                                        (has_bias ? 2 : 1) * hidden);
  const T *d = elements<T>(dy), *x = elements<T>(rows.x), *w = elements<T>(norm.weight);
  const T* more = elements_or_null<T>(before);
  const Wide<T>* means = elements_or_null<Wide<T>>(rows.mean);
  const Wide<T>* scales = elements<Wide<T>>(rows.scale);
  T* target = gradients.needs_dx ? elements<T>(dx) : nullptr;
  for_rows(dy.size(0), step, [&](int64_t chunk, int64_t row) {
    const int64_t at = row * hidden;
    const Wide<T> mean = means ? means[row] : 0, r = scales[row];
    if (trains)
      add_parameter_gradients(d + at, x + at, hidden, mean, r, sums.of_chunk(chunk),
                              sums.of_chunk(chunk) + (has_bias ? hidden : 0), has_bias);
    if (!target) return;
    normalise_row_backward(d + at, x + at, w, more ? more + at : nullptr, target + at, hidden, mean,
                           r, has_bias);
  });
  if (!trains) return;
  sums.add_to(gradients.weight, 0);
  if (has_bias) sums.add_to(gradients.bias, hidden);
}

}  // namespace

NormRows norm_forward(const at::Tensor& x, const at::Tensor& added, const NormParameters& norm) {
  if (!by_kernel(x)) return norm_forward_reference(x, added, norm);
  ZEA_ASSERT(x.is_contiguous() && norm.weight.scalar_type() == x.scalar_type());
  ZEA_ASSERT(!added.defined() || (added.is_contiguous() && added.sizes() == x.sizes()));
  NormRows out{added.defined() ? at::empty_like(x) : x, at::empty_like(x), {}, {}};
  with_element_type(x, [&]<class T>(T) {
    const auto wide = x.options().dtype(c10::CppTypeToScalarType<Wide<T>>::value);
    out.scale = at::empty({x.size(0)}, wide);
    if (norm.bias.defined()) out.mean = at::empty({x.size(0)}, wide);
    forward_host<T>(x, added, norm, out);
  });
  return out;
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& before, const NormRows& rows,
                         const NormParameters& norm, const NormGradients& gradients) {
  if (!by_kernel(dy)) return norm_backward_reference(dy, before, rows, norm, gradients);
  ZEA_ASSERT(dy.is_contiguous() && rows.x.is_contiguous());
  ZEA_ASSERT(!before.defined() || before.is_contiguous());
  const at::Tensor dx = gradients.needs_dx ? at::empty_like(dy) : at::Tensor();
  with_element_type(dy,
                    [&]<class T>(T) { backward_host<T>(dy, before, rows, norm, gradients, dx); });
  return dx;
}

NormRows norm_forward_reference(const at::Tensor& x, const at::Tensor& added,
                                const NormParameters& norm) {
  NormRows out;
  out.x = added.defined() ? x + added : x;
  if (!norm.bias.defined()) {
    std::tie(out.y, out.scale) = rms_norm_forward(out.x, norm.weight, norm.eps);
    return out;
  }
  std::tie(out.y, out.mean, out.scale) =
      at::native_layer_norm(out.x, norm.weight.sizes(), norm.weight, norm.bias, norm.eps);
  return out;
}

at::Tensor norm_backward_reference(const at::Tensor& dy, const at::Tensor& before,
                                   const NormRows& rows, const NormParameters& norm,
                                   const NormGradients& gradients) {
  at::Tensor dx, weight = gradients.weight, bias = gradients.bias;
  if (!norm.bias.defined()) {
    dx = rms_norm_backward(dy, rows.x, rows.scale, norm.weight, gradients.needs_dx, weight);
  } else {
    const bool trains = weight.defined();
    at::Tensor dweight, dbias;
    std::tie(dx, dweight, dbias) = at::native_layer_norm_backward(
        dy, rows.x, norm.weight.sizes(), rows.mean, rows.scale, norm.weight, norm.bias,
        {gradients.needs_dx, trains, trains});
    if (trains) weight.add_(dweight);
    if (trains) bias.add_(dbias);
  }
  return dx.defined() && before.defined() ? dx + before : dx;
}

}  // namespace zea
