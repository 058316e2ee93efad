// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/flat_kernels.hpp"

#include <cmath>
#include <limits>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "launch.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

/// Constants of one update, in the element type.
template <class T>
struct AdamwConstants {
  T keep, decay, beta1, beta2, scale, step_size, root_correction, eps;

  explicit AdamwConstants(const AdamwUpdate& update) {
    const double correction1 = 1 - std::pow(update.beta1, static_cast<double>(update.step));
    const double correction2 = 1 - std::pow(update.beta2, static_cast<double>(update.step));
    keep = static_cast<T>(update.decoupled ? 1 - update.lr * update.weight_decay : 1);
    decay = static_cast<T>(update.decoupled ? 0 : update.weight_decay);
    beta1 = static_cast<T>(update.beta1);
    beta2 = static_cast<T>(update.beta2);
    scale = static_cast<T>(update.gradient_scale);
    step_size = static_cast<T>(update.lr / correction1);
    root_correction = static_cast<T>(1 / std::sqrt(correction2));
    eps = static_cast<T>(update.eps);
  }
};

template <class T>
void adamw_chunk(T* __restrict p, const T* __restrict g, T* __restrict m, T* __restrict v,
                 int64_t count, const AdamwConstants<T>& c) {
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * c.scale + c.decay * p[i];
    m[i] = c.beta1 * m[i] + (1 - c.beta1) * gradient;
    v[i] = c.beta2 * v[i] + (1 - c.beta2) * gradient * gradient;
    p[i] = p[i] * c.keep - c.step_size * m[i] / (std::sqrt(v[i]) * c.root_correction + c.eps);
  }
}

template <class T>
void adamw_host(at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& exp_avg,
                at::Tensor& exp_avg_sq, const AdamwUpdate& update) {
  const AdamwConstants<T> constants(update);
  T* p = parameter.data_ptr<T>();
  const T* g = gradient.const_data_ptr<T>();
  T* m = exp_avg.data_ptr<T>();
  T* v = exp_avg_sq.data_ptr<T>();
  detail::for_each_chunk(parameter.numel(), [=](int64_t, int64_t begin, int64_t end) {
    adamw_chunk(p + begin, g + begin, m + begin, v + begin, end - begin, constants);
  });
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

/// A step takes and frees the same tensors as the one before. glibc would give the larger ones back
/// to the kernel each time, which then clears every page again: a tenth of a step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestKept = 32 << 20;  // that glibc allows
  mallopt(M_MMAP_THRESHOLD, kLargestKept);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

bool on_host(const at::Tensor& tensor) {
  return tensor.is_cpu();
}

}  // namespace

KernelRuntime::KernelRuntime() {
  keep_freed_memory();
#if KOKKOS_VERSION < 30700
  Kokkos::InitArguments arguments;
  arguments.disable_warnings = true;
  Kokkos::initialize(arguments);
#else
  Kokkos::initialize(Kokkos::InitializationSettings().set_disable_warnings(true));
#endif
}

KernelRuntime::~KernelRuntime() {
  Kokkos::finalize();
}

void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
           at::Tensor exp_avg_sq, const AdamwUpdate& update) {
  ZEA_ASSERT(parameter.numel() == gradient.numel() && parameter.numel() == exp_avg.numel() &&
             parameter.numel() == exp_avg_sq.numel());
  if (!on_host(parameter)) return adamw_reference(parameter, gradient, exp_avg, exp_avg_sq, update);
  if (parameter.scalar_type() == at::kDouble)
    adamw_host<double>(parameter, gradient, exp_avg, exp_avg_sq, update);
  else
    adamw_host<float>(parameter, gradient, exp_avg, exp_avg_sq, update);
}

double sum_of_squares(const at::Tensor& flat) {
  if (!on_host(flat)) return sum_of_squares_reference(flat);
  return flat.scalar_type() == at::kDouble ? sum_of_squares_host<double>(flat)
                                           : sum_of_squares_host<float>(flat);
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

double sum_of_squares_reference(const at::Tensor& flat) {
  return flat.to(at::kDouble).square().sum().item<double>();
}

}  // namespace zea
