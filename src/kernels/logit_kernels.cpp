// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/logit_kernels.hpp"

#include "elements.hpp"
#include "launch.hpp"

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
ZEA_WIDE_CLONES Wide<T> largest(const T* __restrict row, int64_t columns, Wide<T> maximum) {
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < columns; ++i) {
    const Wide<T> value = load(row[i]);
    maximum = value > maximum ? value : maximum;
  }
  return maximum;
}

template <class T>
ZEA_WIDE_CLONES Wide<T> sum_of_exponentials(const T* __restrict row, int64_t columns,
                                            Wide<T> maximum) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < columns; ++i) sum += detail::exponential(load(row[i]) - maximum);
  return sum;
}

template <class T>
ZEA_WIDE_CLONES void scaled_softmax(T* __restrict row, int64_t columns, Wide<T> lse,
                                    Wide<T> scale) {
  for (int64_t i = 0; i < columns; ++i)
    store(row[i], detail::exponential(load(row[i]) - lse) * scale);
}

/// Calls visit(row, column of its target or -1) for all rows of a tile.
template <class Visit>
void for_rows(const at::Tensor& logits, const at::Tensor& targets, int64_t first, Visit visit) {
  ZEA_ASSERT(logits.is_contiguous() && targets.is_contiguous());
  const int64_t columns = logits.size(1);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  detail::for_each_chunk(
      logits.size(0),
      [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t place = target[row] - first;
          visit(row, place >= 0 && place < columns ? place : -1);
        }
      },
      rows_per_chunk(columns));
}

}  // namespace

LogitSums::LogitSums(int64_t rows, const at::TensorOptions& wide)
    : maxima(at::full({rows}, -std::numeric_limits<double>::infinity(), wide)),
      sums(at::zeros({rows}, wide)),
      picked(at::zeros({rows}, wide)) {}

LogitSums LogitSums::narrow(int64_t begin, int64_t count) const {
  LogitSums part;
  part.maxima = maxima.narrow(0, begin, count);
  part.sums = sums.narrow(0, begin, count);
  part.picked = picked.narrow(0, begin, count);
  return part;
}

void add_logits(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                const LogitSums& sums) {
  if (!by_kernel(logits)) return add_logits_reference(logits, targets, first, sums);
  const int64_t columns = logits.size(1);
  with_element_type(logits, [&]<class T>(T) {
    Wide<T>*maxima = elements<Wide<T>>(sums.maxima), *totals = elements<Wide<T>>(sums.sums),
    *picked = elements<Wide<T>>(sums.picked);
    for_rows(logits, targets, first, [&](int64_t row, int64_t place) {
      const T* values = elements<T>(logits) + row * columns;
      const Wide<T> before = maxima[row], maximum = largest(values, columns, before);
      const Wide<T> kept = totals[row] == 0 ? 0 : totals[row] * std::exp(before - maximum);
      totals[row] = kept + sum_of_exponentials(values, columns, maximum);
      maxima[row] = maximum;
      if (place >= 0) picked[row] = load(values[place]);
    });
  });
}

void logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                        const at::Tensor& lse, const at::Tensor& scale) {
  if (!by_kernel(logits)) return logits_to_gradient_reference(logits, targets, first, lse, scale);
  const int64_t columns = logits.size(1);
  with_element_type(logits, [&]<class T>(T) {
    const Wide<T> factor = *elements<Wide<T>>(scale);
    for_rows(logits, targets, first, [&](int64_t row, int64_t place) {
      T* values = elements<T>(logits) + row * columns;
      const Wide<T> sum = elements<Wide<T>>(lse)[row];
      const Wide<T> own = place < 0 ? 0 : std::exp(load(values[place]) - sum) - 1;
      scaled_softmax(values, columns, sum, factor);
      if (place >= 0) store(values[place], own * factor);
    });
  });
}

namespace {

/// Of each row the column of its target in the tile, 0 where it is elsewhere, and whether it is
/// here: 1 or 0. Unlike rows of some, these need no device to be waited for.
std::pair<at::Tensor, at::Tensor> places_in_tile(const at::Tensor& logits,
                                                 const at::Tensor& targets, int64_t first,
                                                 at::ScalarType type) {
  const at::Tensor places = targets.sub(first).unsqueeze_(1);
  const at::Tensor are_here = places.ge(0).logical_and_(places.lt(logits.size(1)));
  return {places.mul(are_here), are_here.to(type)};
}

}  // namespace

void add_logits_reference(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                          const LogitSums& sums) {
  const at::Tensor values = logits.to(sums.sums.scalar_type());
  const at::Tensor maxima = at::maximum(sums.maxima, values.amax(1));
  const auto [places, are_here] = places_in_tile(logits, targets, first, values.scalar_type());
  sums.sums.mul_(sums.maxima.sub(maxima).exp_());
  sums.sums.add_(values.sub(maxima.unsqueeze(1)).exp_().sum(1));
  sums.maxima.copy_(maxima);
  sums.picked.add_(values.gather(1, places).mul_(are_here).squeeze(1));
}

void logits_to_gradient_reference(const at::Tensor& logits, const at::Tensor& targets,
                                  int64_t first, const at::Tensor& lse, const at::Tensor& scale) {
  at::Tensor d = logits.to(lse.scalar_type()).sub(lse.unsqueeze(1)).exp_();
  const auto [places, are_here] = places_in_tile(logits, targets, first, d.scalar_type());
  d.scatter_add_(1, places, are_here.neg());
  logits.copy_(d.mul_(scale));
}

}  // namespace zea
