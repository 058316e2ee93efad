// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/flat_kernels.hpp"

#include <cmath>
#include <vector>

#include "flat_functors.hpp"
#include "run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::runs_kernels;

template <class T>
detail::AdamwConstants<T> constants_of(const AdamwUpdate& update) {
  const double correction1 = 1 - std::pow(update.beta1, static_cast<double>(update.step));
  const double correction2 = 1 - std::pow(update.beta2, static_cast<double>(update.step));
  const auto of = [](double value) { return static_cast<T>(value); };
  return {.keep = of(update.decoupled ? 1 - update.lr * update.weight_decay : 1),
          .decay = of(update.decoupled ? 0 : update.weight_decay),
          .beta1 = of(update.beta1),
          .beta2 = of(update.beta2),
          .scale = of(update.gradient_scale),
          .step_size = of(update.lr / correction1),
          .root_correction = of(1 / std::sqrt(correction2)),
          .eps = of(update.eps)};
}

template <class T>
void run_adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
               const at::Tensor& exp_avg_sq, const AdamwUpdate& update) {
  const detail::AdamwChunk<T> functor{.parameters = elements<T>(parameter),
                                      .gradients = elements<T>(gradient),
                                      .exp_avgs = elements<T>(exp_avg),
                                      .exp_avg_sqs = elements<T>(exp_avg_sq),
                                      .elements = parameter.numel(),
                                      .constants = constants_of<T>(update)};
  run_items(parameter, functor, detail::num_chunks(parameter.numel()), kChunkElements);
}

template <class T>
double sum_of_squares_host(const at::Tensor& flat) {
  const T* x = flat.const_data_ptr<T>();
  std::vector<double> partial(detail::num_chunks(flat.numel()));
  detail::for_each_chunk(flat.numel(), [&](int64_t chunk, int64_t begin, int64_t end) {
    // Eight sums side by side: the order is fixed, and the loop is not one chain of additions.
    double lanes[8] = {};
    int64_t i = begin;
    for (; i + 8 <= end; i += 8)
      for (int64_t lane = 0; lane < 8; ++lane) {
        const double value = static_cast<double>(x[i + lane]);
        lanes[lane] += value * value;
      }
    for (; i < end; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (double lane : lanes) partial[chunk] += lane;
  });
  double sum = 0;
  for (double part : partial) sum += part;
  return sum;
}

template <class T>
at::Tensor sum_of_squares_of(const at::Tensor& flat) {
  const at::TensorOptions in_double = flat.options().dtype(at::kDouble);
  if (flat.is_cpu()) return at::full({}, sum_of_squares_host<T>(flat), in_double);
  const int64_t chunks = detail::num_chunks(flat.numel());
  const at::Tensor sums = at::empty({chunks}, in_double);
  const detail::SquaresOfChunk<T> functor{elements<T>(flat), elements<double>(sums), flat.numel()};
  run_items(flat, functor, chunks, kChunkElements);
  return sums.sum();
}

}  // namespace

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
           at::Tensor exp_avg_sq, const AdamwUpdate& update) {
  ZEA_ASSERT(parameter.numel() == gradient.numel() && parameter.numel() == exp_avg.numel() &&
             parameter.numel() == exp_avg_sq.numel());
  if (!runs_kernels(parameter))
    return adamw_reference(parameter, gradient, exp_avg, exp_avg_sq, update);
  if (parameter.scalar_type() == at::kDouble)
    run_adamw<double>(parameter, gradient, exp_avg, exp_avg_sq, update);
  else
    run_adamw<float>(parameter, gradient, exp_avg, exp_avg_sq, update);
}

at::Tensor sum_of_squares(const at::Tensor& flat) {
  if (!runs_kernels(flat)) return sum_of_squares_reference(flat);
  return flat.scalar_type() == at::kDouble ? sum_of_squares_of<double>(flat)
                                           : sum_of_squares_of<float>(flat);
}

void adamw_reference(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
                     at::Tensor exp_avg_sq, const AdamwUpdate& update) {
  const double step = static_cast<double>(update.step);
  at::Tensor scaled = gradient * update.gradient_scale;
  if (!update.decoupled) scaled.add_(parameter, update.weight_decay);
  exp_avg.mul_(update.beta1).add_(scaled, 1 - update.beta1);
  exp_avg_sq.mul_(update.beta2).addcmul_(scaled, scaled, 1 - update.beta2);
  const at::Tensor root =
      exp_avg_sq.sqrt().div_(std::sqrt(1 - std::pow(update.beta2, step))).add_(update.eps);
  if (update.decoupled) parameter.mul_(1 - update.lr * update.weight_decay);
  parameter.addcdiv_(exp_avg, root, -update.lr / (1 - std::pow(update.beta1, step)));
}

at::Tensor sum_of_squares_reference(const at::Tensor& flat) {
  return flat.to(at::kDouble).square().sum();
}

}  // namespace zea
