// SPDX-License-Identifier: Apache-2.0
#include "kernels/flat_kernels.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "kernels/flat_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items_on_host;
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

const at::Tensor& flat_of(const at::Tensor& flat) {
  return flat;
}

const at::Tensor& flat_of(const NesterovRun& run) {
  return run.average;
}

template <class Run>
const at::Tensor& flat_of(const Run& run) {
  return run.parameter;
}

/// Calls visit(T{}, those) for those on the host, one at a time, and for all of one type on a
/// device; others(one) for those of other types and devices.
template <class One>
void for_each_kind(const std::vector<One>& all, const auto& visit, const auto& others) {
  std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::vector<One>> on_devices;
  const auto visit_typed = [&](const std::vector<One>& some) {
    if (flat_of(some[0]).scalar_type() == at::kDouble)
      visit(double{}, some);
    else
      visit(float{}, some);
  };
  for (const One& one : all) {
    const at::Tensor& flat = flat_of(one);
    if (!runs_kernels(flat))
      others(one);
    else if (flat.is_cpu())
      visit_typed({one});
    else
      on_devices[{flat.device().index(), flat.scalar_type()}].push_back(one);
  }
  for (const auto& [kind, some] : on_devices) visit_typed(some);
}

/// Runs the functors over the chunks of their flat buffers, which are where `where` is.
template <class OfChunk>
void run_flats(const at::Tensor& where, const std::vector<OfChunk>& flats) {
  if (where.is_cpu()) {
    for (const OfChunk& flat : flats)
      run_items_on_host(flat, detail::num_chunks(flat.elements), kChunkElements);
    return;
  }
  detail::ChunksOfFlats<OfChunk> batch{};
  int64_t chunks = 0;
  const auto launch = [&] {
    if (chunks > 0)
      detail::launch_items(batch, chunks, detail::num_packs(where, kChunkElements),
                           detail::stream_of(where));
    batch.count = 0, chunks = 0;
  };
  for (const OfChunk& flat : flats) {
    if (flat.elements == 0) continue;
    chunks += detail::num_chunks(flat.elements);
    batch.flats[batch.count] = flat;
    batch.ends[batch.count++] = chunks;
    if (batch.count == detail::kFlatsAtOnce) launch();
  }
  launch();
}

template <class T>
detail::AdamwChunk<T> chunk_of(const AdamwRun& run) {
  return {.parameters = elements<T>(run.parameter),
          .gradients = elements<T>(run.gradient),
          .exp_avgs = elements<T>(run.exp_avg),
          .exp_avg_sqs = elements<T>(run.exp_avg_sq),
          .elements = run.parameter.numel(),
          .constants = constants_of<T>(run.update),
          .device_scale = run.update.device_scale};
}

template <class T>
detail::SgdChunk<T> chunk_of(const SgdRun& run) {
  const auto of = [](double value) { return static_cast<T>(value); };
  const SgdUpdate& update = run.update;
  return {.parameters = elements<T>(run.parameter),
          .gradients = elements<T>(run.gradient),
          .momentum_buffers = elements<T>(run.momentum_buffer),
          .elements = run.parameter.numel(),
          .constants = {of(update.momentum), of(update.weight_decay), of(update.gradient_scale),
                        of(update.lr)},
          .device_scale = update.device_scale};
}

template <class T>
detail::NesterovChunk<T> chunk_of(const NesterovRun& run) {
  return {.averages = elements<T>(run.average),
          .gradients = elements<T>(run.gradient),
          .updates = elements<T>(run.update),
          .elements = run.average.numel(),
          .momentum = static_cast<T>(run.momentum),
          .scale = static_cast<T>(run.gradient_scale)};
}

/// `reference` of those for which there is no kernel.
template <class Run>
void update_flats(const std::vector<Run>& runs, const auto& reference) {
  const auto update = [](auto zero, const std::vector<Run>& some) {
    using T = decltype(zero);
    std::vector<decltype(chunk_of<T>(some[0]))> functors;
    for (const Run& run : some) functors.push_back(chunk_of<T>(run));
    run_flats(flat_of(some[0]), functors);
  };
  for_each_kind(runs, update, reference);
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
at::Tensor chunk_squares_of(const std::vector<at::Tensor>& flats) {
  int64_t chunks = 0;
  for (const at::Tensor& flat : flats) chunks += detail::num_chunks(flat.numel());
  const at::Tensor sums = at::empty({chunks}, flats[0].options().dtype(at::kDouble));
  std::vector<detail::SquaresOfChunk<T>> functors;
  double* next = elements<double>(sums);
  for (const at::Tensor& flat : flats) {
    functors.push_back({elements<T>(flat), next, flat.numel()});
    next += detail::num_chunks(flat.numel());
  }
  run_flats(flats[0], functors);
  return sums;
}

}  // namespace

void adamw(const std::vector<AdamwRun>& runs) {
  for (const AdamwRun& run : runs)
    for (const at::Tensor& other : {run.gradient, run.exp_avg, run.exp_avg_sq})
      ZEA_ASSERT(run.parameter.numel() == other.numel());
  update_flats(runs, [](const AdamwRun& run) {
    adamw_reference(run.parameter, run.gradient, run.exp_avg, run.exp_avg_sq, run.update);
  });
}

void sgd(const std::vector<SgdRun>& runs) {
  for (const SgdRun& run : runs)
    for (const at::Tensor& other : {run.gradient, run.momentum_buffer})
      ZEA_ASSERT(run.parameter.numel() == other.numel());
  update_flats(runs, sgd_reference);
}

void nesterov(const std::vector<NesterovRun>& runs) {
  for (const NesterovRun& run : runs)
    for (const at::Tensor& other : {run.gradient, run.update})
      ZEA_ASSERT(run.average.numel() == other.numel());
  update_flats(runs, nesterov_reference);
}

void adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const AdamwUpdate& update) {
  adamw({{parameter, gradient, exp_avg, exp_avg_sq, update}});
}

bool has_flat_kernels(at::Device device) {
  return device.is_cpu() || detail::has_device_kernels();
}

at::Tensor chunk_squares(const std::vector<at::Tensor>& flats) {
  return flats.at(0).scalar_type() == at::kDouble ? chunk_squares_of<double>(flats)
                                                  : chunk_squares_of<float>(flats);
}

double sum_of_squares(const std::vector<at::Tensor>& flats) {
  double sum = 0;
  std::vector<at::Tensor> elsewhere;  // all devices begin before one is waited for
  const auto add = [&](auto zero, const std::vector<at::Tensor>& some) {
    using T = decltype(zero);
    if (some[0].is_cpu())
      sum += sum_of_squares_host<T>(some[0]);
    else
      elsewhere.push_back(chunk_squares_of<T>(some).sum());
  };
  for_each_kind(flats, add, [&](const at::Tensor& flat) {
    elsewhere.push_back(sum_of_squares_reference(flat));
  });
  for (const at::Tensor& part : elsewhere) sum += part.item<double>();
  return sum;
}

void adamw_reference(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
                     at::Tensor exp_avg_sq, const AdamwUpdate& update) {
  ZEA_ASSERT(update.device_scale == nullptr);
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

void sgd_reference(const SgdRun& run) {
  const SgdUpdate& update = run.update;
  ZEA_ASSERT(update.device_scale == nullptr);
  at::Tensor parameter = run.parameter, buffer = run.momentum_buffer;
  buffer.mul_(update.momentum).add_(run.gradient, update.gradient_scale);
  if (update.weight_decay != 0) buffer.add_(parameter, update.weight_decay);
  parameter.add_(buffer, -update.lr);
}

void nesterov_reference(const NesterovRun& run) {
  at::Tensor average = run.average, update = run.update;
  at::mul_out(update, run.gradient, at::scalar_tensor(run.gradient_scale, update.options()));
  average.lerp_(update, 1 - run.momentum);
  update.lerp_(average, run.momentum);
}

at::Tensor sum_of_squares_reference(const at::Tensor& flat) {
  return flat.to(at::kDouble).square().sum();
}

}  // namespace zea
