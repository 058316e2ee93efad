// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/route_functors.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/run_items.hpp"

namespace zea {

bool routes_by_kernels(const at::Tensor& outputs) {
  return !outputs.is_cpu() && detail::runs_kernels(outputs);
}

Routes route_rows(const at::Tensor& outputs, const at::Tensor& bias, const RouteOptions& options) {
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
                                      .experts = x.size(1),
                                      .count = options.chosen,
                                      .are_sigmoids = options.are_sigmoids,
                                      .renormalizes = options.renormalizes,
                                      .min_sum = static_cast<W>(options.min_sum),
                                      .factor = static_cast<W>(options.factor)};
    detail::run_items(x, functor, x.size(0), x.size(1));
  });
  return routes;
}

at::Tensor route_rows_backward(const at::Tensor& dgates, const at::Tensor& outputs,
                               const at::Tensor& chosen, const RouteOptions& options) {
  const at::Tensor x = outputs.contiguous(), d = dgates.contiguous();
  const at::Tensor dx = at::empty_like(x);
  detail::with_element_type(x, [&]<class T>(T) {
    using W = detail::Wide<T>;
    const detail::RouteRowBackward<T> functor{.x = detail::elements<T>(x),
                                              .dgates = detail::elements<W>(d),
                                              .chosen = detail::elements<int64_t>(chosen),
                                              .dx = detail::elements<T>(dx),
                                              .experts = x.size(1),
                                              .count = options.chosen,
                                              .are_sigmoids = options.are_sigmoids,
                                              .renormalizes = options.renormalizes,
                                              .min_sum = static_cast<W>(options.min_sum),
                                              .factor = static_cast<W>(options.factor)};
    detail::run_items(x, functor, x.size(0), x.size(1));
  });
  return dx;
}

}  // namespace zea
