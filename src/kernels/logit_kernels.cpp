// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "kernels/row_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::Wide;
using detail::with_element_type;

template <class T>
detail::LogitRows<T> rows_of(const at::Tensor& logits, const at::Tensor& targets, int64_t first) {
  ZEA_ASSERT(logits.is_contiguous() && targets.is_contiguous());
  return {elements<T>(logits), targets.const_data_ptr<int64_t>(), first, logits.size(1)};
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
  if (!detail::runs_kernels(logits)) return add_logits_reference(logits, targets, first, sums);
  with_element_type(logits, [&]<class T>(T) {
    const detail::AddLogitRow<T> functor{
        rows_of<T>(logits, targets, first), elements<Wide<T>>(sums.maxima),
        elements<Wide<T>>(sums.sums), elements<Wide<T>>(sums.picked)};
    run_items(logits, functor, logits.size(0), logits.size(1));
  });
}

void logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                        const at::Tensor& lse, const at::Tensor& scale) {
  if (!detail::runs_kernels(logits))
    return logits_to_gradient_reference(logits, targets, first, lse, scale);
  with_element_type(logits, [&]<class T>(T) {
    const detail::LogitRowGradient<T> functor{rows_of<T>(logits, targets, first),
                                              elements<Wide<T>>(lse), elements<Wide<T>>(scale)};
    run_items(logits, functor, logits.size(0), logits.size(1));
  });
}

namespace {

/// Returns for each row the column of its target in the tile, 0 if it is elsewhere, and whether it
/// is here: 1 or 0. Unlike a selection of rows, these need no wait for the device.
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
