// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "kernels/route_functors.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

template <class W>
detail::RouteFormula<W> formula_of(int64_t experts, const RouteOptions& options) {
  return {experts,
          options.chosen,
          options.are_sigmoids,
          options.renormalizes,
          static_cast<W>(options.min_sum),
          static_cast<W>(options.factor),
          options.groups,
          options.topk_groups};
}

}  // namespace

Routes route_rows(const at::Tensor& outputs, const at::Tensor& bias, const RouteOptions& options) {
  if (!detail::runs_kernels(outputs) || options.groups > detail::kMostGroups)
    return route_rows_reference(outputs, bias, options);
  const at::Tensor x = outputs.contiguous();
  Routes routes;
  detail::with_element_type(x, [&]<class T>(T) {
    using W = detail::Wide<T>;
    constexpr at::ScalarType wide = c10::CppTypeToScalarType<W>::value;
    const at::Tensor added = bias.defined() ? bias.to(wide) : at::Tensor();
    routes = {at::empty({x.size(0), options.chosen}, x.options().dtype(wide)),
              at::empty({x.size(0), options.chosen}, x.options().dtype(at::kLong))};
    const detail::RouteRow<T> functor{.x = detail::elements<T>(x),
                                      .bias = bias.defined() ? detail::elements<W>(added) : nullptr,
                                      .gates = detail::elements<W>(routes.gates),
                                      .chosen = detail::elements<int64_t>(routes.chosen),
                                      .formula = formula_of<W>(x.size(1), options)};
    detail::run_items(x, functor, x.size(0), x.size(1));
  });
  return routes;
}

at::Tensor route_rows_backward(const at::Tensor& dgates, const at::Tensor& outputs,
                               const at::Tensor& chosen, const RouteOptions& options) {
  if (!detail::runs_kernels(outputs))
    return route_rows_backward_reference(dgates, outputs, chosen, options);
  const at::Tensor x = outputs.contiguous(), d = dgates.contiguous();
  const at::Tensor dx = at::empty_like(x);
  detail::with_element_type(x, [&]<class T>(T) {
    using W = detail::Wide<T>;
    const detail::RouteRowBackward<T> functor{.x = detail::elements<T>(x),
                                              .dgates = detail::elements<W>(d),
                                              .chosen = detail::elements<int64_t>(chosen),
                                              .dx = detail::elements<T>(dx),
                                              .formula = formula_of<W>(x.size(1), options)};
    detail::run_items(x, functor, x.size(0), x.size(1));
  });
  return dx;
}

PlacesOfCopies place_copies(const at::Tensor& sorted, const at::Tensor& copies, int64_t experts) {
  if (!sorted.is_cpu() && !detail::has_device_kernels())
    return place_copies_reference(sorted, copies, experts);
  const auto ends_type = sorted.options().dtype(at::kInt);
  if (sorted.numel() == 0) return {at::empty_like(copies), at::zeros({experts}, ends_type)};
  const PlacesOfCopies made{at::empty_like(copies), at::empty({experts}, ends_type)};
  const detail::PlaceCopies<int64_t> functor{.sorted = detail::elements<int64_t>(sorted),
                                             .copies = detail::elements<int64_t>(copies),
                                             .places = detail::elements<int64_t>(made.places),
                                             .ends = detail::elements<int32_t>(made.ends),
                                             .count = sorted.numel(),
                                             .experts = experts};
  const int64_t chunks = (sorted.numel() + kChunkElements - 1) / kChunkElements;
  detail::run_items(sorted, functor, chunks, kChunkElements);
  return made;
}

void add_active_rows(const at::Tensor& target, const at::Tensor& made, const at::Tensor& ends) {
  const bool are_contiguous = target.is_contiguous() && made.is_contiguous();
  if (!are_contiguous || !detail::runs_kernels(target))
    return add_active_rows_reference(target, made, ends);
  ZEA_ASSERT(target.sizes() == made.sizes());
  detail::with_element_type(target, [&]<class T>(T) {
    const detail::AddActiveRows<T> functor{.made = detail::elements<detail::Bf16>(made),
                                           .target = detail::elements<T>(target),
                                           .ends = detail::elements<int32_t>(ends),
                                           .rows = made.size(1),
                                           .width = made.size(2)};
    detail::run_items(made, functor, made.size(0) * made.size(1), made.size(2));
  });
}

}  // namespace zea
