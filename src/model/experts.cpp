// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: choosing experts, sending rows to them, their linears, and the sum of what
// they return. No row is dropped, and each result depends on its own token alone.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/kernel_sizes.hpp"
#include "kernels/launch.hpp"
#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// Whether the library multiplies the rows of all experts at once: in bf16 on devices, rows of
/// whole packs of 16 bytes.
bool is_grouped(const Tensor& x, const Tensor& matrices) {
  if (x.is_cpu() || x.scalar_type() != at::kBFloat16 || x.size(0) == 0) return false;
  return x.size(1) % kPackOfBf16 == 0 && matrices.size(1) % kPackOfBf16 == 0 &&
         matrices.size(2) % kPackOfBf16 == 0;
}

/// Whether what experts add to rows like `x` is added expert by expert, for which the host waits
/// where these rows are on a device.
bool waits_for_ends(const Tensor& x) {
  return x.is_cpu() || x.scalar_type() != at::kBFloat16 || x.size(0) == 0 ||
         x.size(1) % kPackOfBf16 != 0;
}

/// Calls visit(expert, first row, rows) for each expert that has rows.
template <class Visit>
void for_each_expert(const Tensor& ends, const Visit& visit) {
  const Tensor on_host = ends.to(at::kCPU, at::kLong);
  const int64_t* end = on_host.const_data_ptr<int64_t>();
  for (int64_t e = 0, begin = 0; e < ends.numel(); begin = end[e++])
    if (end[e] > begin) visit(e, begin, end[e] - begin);
}

/// An expert with at most this many rows is one task, since parts would not be faster.
constexpr int64_t kLeastTaskRows = 256;
/// Tasks per thread if there are many rows: several, since experts differ in rows.
constexpr int64_t kTasksPerThread = 4;

/// A part of an expert's GEMM.
struct ExpertTask {
  int64_t expert, begin, rows;  ///< all rows of the expert
  int64_t part = 0, parts = 1;
  bool is_on_thread = true;  ///< on one thread, while others run other tasks

  /// Returns this part's rows of a matrix: the first, and their number.
  std::pair<int64_t, int64_t> part_of(int64_t all) const {
    const int64_t step = round_up((all + parts - 1) / parts, 16), first = part * step;
    return {std::min(first, all), std::clamp<int64_t>(all - first, 0, step)};
  }
  Tensor part_of(const Tensor& matrix) const {
    const auto [first, count] = part_of(matrix.size(0));
    return matrix.narrow(0, first, count);
  }
};

/// Calls multiply(task) for the rows of all experts: each task on one thread if there are enough
/// tasks for all threads, else one expert after the other on all threads.
template <class Multiply>
void multiply_experts(const Tensor& rows, const Tensor& ends, const Multiply& multiply) {
  const int64_t threads = rows.is_cpu() ? at::get_num_threads() : 1;
  const int64_t most = std::max(kLeastTaskRows, rows.size(0) / (kTasksPerThread * threads));
  std::vector<ExpertTask> whole, tasks;
  for_each_expert(ends, [&](int64_t e, int64_t begin, int64_t count) {
    const int64_t parts = threads > 1 ? (count + most - 1) / most : 1;
    whole.push_back({.expert = e, .begin = begin, .rows = count, .is_on_thread = false});
    for (int64_t part = 0; part < parts; ++part) tasks.push_back({e, begin, count, part, parts});
  });
  if (!rows.is_cpu() || std::ssize(tasks) < threads) {
    std::ranges::for_each(whole, multiply);
    return;
  }
  side_by_side(std::ssize(tasks), [&](int64_t i) {
    const at::NoGradGuard no_gradient;  // the mode is per thread
    multiply(tasks[static_cast<size_t>(i)]);
  });
}

struct RouteFunction : Function<RouteFunction> {
  static Tensors forward(Context* ctx, const Tensor& outputs, const RouterSpec* router,
                         const Tensor* bias) {
    const RouteOptions options{.chosen = router->chosen,
                               .are_sigmoids = router->scores == RouterScores::Sigmoid,
                               .renormalizes = router->norm_topk_prob,
                               .min_sum = router->min_sum,
                               .factor = router->factor,
                               .groups = router->groups,
                               .topk_groups = router->topk_groups};
    const Routes routes = route_rows(outputs, *bias, options);
    ctx->save_for_backward({outputs, routes.chosen});
    ctx->saved_data["are_sigmoids"] = options.are_sigmoids;
    ctx->saved_data["renormalizes"] = options.renormalizes;
    ctx->saved_data["min_sum"] = options.min_sum;
    ctx->saved_data["factor"] = options.factor;
    ctx->mark_non_differentiable({routes.chosen});
    return {routes.gates, routes.chosen};
  }

  static Tensors backward(Context* ctx, const Tensors& gradients) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &outputs = saved[0], &chosen = saved[1];
    const auto flag = [&](const char* name) { return ctx->saved_data.at(name).toBool(); };
    const auto number = [&](const char* name) { return ctx->saved_data.at(name).toDouble(); };
    const RouteOptions options{chosen.size(1), flag("are_sigmoids"), flag("renormalizes"),
                               number("min_sum"), number("factor")};
    return {route_rows_backward(gradients[0], outputs, chosen, options), {}, {}};
  }
};

struct RouterLossFunction : Function<RouterLossFunction> {
  static Tensor forward(Context* ctx, const Tensor& outputs, const RouterLossWeights* weights) {
    ctx->save_for_backward({outputs});
    ctx->saved_data["squares"] = weights->squares;
    ctx->saved_data["gradients"] = weights->gradients;
    if (weights->experts.defined()) ctx->saved_data["experts"] = weights->experts;
    const Tensor scores = wide(outputs);
    const Tensor squares = scores.logsumexp(1).square().sum(at::kDouble) * weights->squares;
    if (!weights->experts.defined()) return squares;
    return squares + scores.softmax(1).sum(0, false, at::kDouble).dot(weights->experts);
  }

  static Tensors backward(Context* ctx, const Tensors& gradients) {
    const Tensor outputs = ctx->get_saved_variables()[0], scores = wide(outputs);
    const auto number = [&](const char* name) { return ctx->saved_data.at(name).toDouble(); };
    const Tensor shares = scores.softmax(1);
    Tensor factors = scores.logsumexp(1, true) * (2 * number("squares"));
    if (const auto found = ctx->saved_data.find("experts"); found != ctx->saved_data.end()) {
      const Tensor experts = found->second.toTensor().to(scores.scalar_type());
      factors = factors + experts - shares.mv(experts).unsqueeze(1);
    }
    const Tensor factor = (gradients[0] * number("gradients")).to(scores.scalar_type());
    return {(shares * factors * factor).to(outputs.scalar_type()), {}};
  }
};

struct ScaleGatesFunction : Function<ScaleGatesFunction> {
  static Tensor forward(Context* ctx, const Tensor& gates, const Tensor& anchor,
                        const Tensor& chosen, Parameter* scale) {
    (void)anchor;
    remember(ctx, {scale});
    ctx->save_for_backward({gates, chosen});
    return gates * factors(gates, chosen, scale);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &gates = saved[0], &chosen = saved[1], &dy = outputs[0];
    Parameter* scale = recall(ctx, 0);
    if (scale->trainable()) {
      const Tensor terms = at::zeros({gates.size(0), scale->shape()[0]}, gates.options());
      add_bias_gradient_now(*scale, terms.scatter_(1, chosen, dy * gates));
    }
    return {dy * factors(gates, chosen, scale), {}, {}, {}};
  }

 private:
  static Tensor factors(const Tensor& gates, const Tensor& chosen, Parameter* scale) {
    return scale->value().to(gates.scalar_type()).index_select(0, chosen.flatten()).view_as(gates);
  }
};

/// Where the rows of tokens go.
struct Places {
  Tensor of_copies, ends;  ///< as in DispatchedRows
  int64_t rows = 0;        ///< of these experts; on a device as many as there can be
};

Places places_on_host(const Tensor& chosen, const ExpertRange& experts) {
  Places places{at::empty_like(chosen), at::zeros({experts.count}, at::kLong)};
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  int64_t* place = places.of_copies.mutable_data_ptr<int64_t>();
  int64_t* end = places.ends.mutable_data_ptr<int64_t>();
  const int64_t copies = chosen.numel();
  const auto is_here = [&](int64_t i) {
    return expert[i] >= experts.first && expert[i] < experts.first + experts.count;
  };
  for (int64_t i = 0; i < copies; ++i)
    if (is_here(i)) ++end[expert[i] - experts.first];
  for (int64_t e = 1; e < experts.count; ++e) end[e] += end[e - 1];
  std::vector<int64_t> next(static_cast<size_t>(experts.count), 0);
  for (size_t e = 1; e < next.size(); ++e) next[e] = end[e - 1];
  for (int64_t i = 0; i < copies; ++i)
    place[i] = is_here(i) ? next[static_cast<size_t>(expert[i] - experts.first)]++ : -1;
  places.rows = end[experts.count - 1];
  return places;
}

/// The host does not wait for the device. Copies for experts of other ranks come last.
Places places_on_device(const Tensor& chosen, const ExpertRange& experts) {
  const int64_t rows = chosen.size(0) * std::min(chosen.size(1), experts.count);
  Tensor all = chosen.flatten();
  if (experts.count < experts.all) all = (all - experts.first).remainder_(experts.all);
  const auto [sorted, copies] = all.sort(true, 0, false);
  const PlacesOfCopies made = place_copies(sorted, copies, experts.count);
  return {made.places.view_as(chosen), made.ends, rows};
}

struct SendFunction : Function<SendFunction> {
  static Tensors forward(Context* ctx, const Tensor& x, const Tensor& chosen,
                         const ExpertRange* experts) {
    const Places places =
        chosen.is_cpu() ? places_on_host(chosen, *experts) : places_on_device(chosen, *experts);
    ctx->save_for_backward({places.of_copies});
    ctx->mark_non_differentiable({places.of_copies, places.ends});
    return {send_rows(x.contiguous(), places.of_copies, places.rows), places.of_copies,
            places.ends};
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {combine_rows(outputs[0].contiguous(), ctx->get_saved_variables()[0], {}), {}, {}};
  }
};

/// Adds to each of y (rows, out) the bias (experts, out) of its expert, in place.
void add_expert_biases(const Tensor& y, const Tensor& bias, const Tensor& ends) {
  if (!waits_for_ends(y)) {
    const Tensor rows = at::arange(y.size(0), ends.options());
    const Tensor experts = at::bucketize(rows, ends, true, true).clamp_max_(ends.size(0) - 1);
    y.add_(bias.index_select(0, experts));
    return;
  }
  for_each_expert(ends, [&](int64_t e, int64_t begin, int64_t rows) {
    y.narrow(0, begin, rows).add_(bias[e]);
  });
}

/// Adds to gradient (experts, out) the sums of dy (rows, out) over the rows of each expert.
void add_expert_bias_gradients(const Tensor& gradient, const Tensor& dy, const Tensor& ends) {
  if (!waits_for_ends(dy)) {
    // Sums are products with columns of ones, as many as the library multiplies.
    const Tensor ones = at::ones({dy.size(0), kPackOfBf16}, dy.options());
    add_active_rows(gradient.unsqueeze(1), at::_grouped_mm(ones.t(), dy, ends).narrow(1, 0, 1),
                    ends);
    return;
  }
  for_each_expert(ends, [&](int64_t e, int64_t begin, int64_t rows) {
    add_column_sums(gradient[e], dy.narrow(0, begin, rows));
  });
}

struct ExpertLinearFunction : Function<ExpertLinearFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const Tensor& ends,
                        Parameter* weight, Parameter* bias, WeightOrder order) {
    (void)anchor;
    remember(ctx, {weight, bias});
    ctx->saved_data["is_in_out"] = order == WeightOrder::InOut;
    ctx->saved_data["ends"] = ends;
    if (weight->trainable()) ctx->save_for_backward({x});
    const Tensor y =
        expert_products(x, expert_matrices(weight->value(), order, ends).transpose(1, 2), ends);
    if (bias) add_expert_biases(y, bias->value(), ends);
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Parameter* weight = recall(ctx, 0);
    const Tensor ends = ctx->saved_data.at("ends").toTensor();
    const WeightOrder order =
        ctx->saved_data.at("is_in_out").toBool() ? WeightOrder::InOut : WeightOrder::OutIn;
    const Tensor dy = outputs[0].contiguous();
    Tensor dx;
    if (ctx->needs_input_grad(0))
      dx = expert_products(dy, expert_matrices(weight->value(), order, ends), ends);
    if (Parameter* bias = recall(ctx, 1); bias && bias->trainable())
      add_expert_bias_gradients(bias->gradient(), dy, ends);
    if (weight->trainable())
      add_expert_gradients(*weight, order, ctx->get_saved_variables()[0], dy, ends);
    return {dx, {}, {}, {}, {}, {}};
  }
};

struct CombineFunction : Function<CombineFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& gates, const Tensor& places) {
    ctx->save_for_backward({x, gates, places});
    return combine_rows(x, places, gates);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const CombinedGradients made =
        combine_rows_backward(outputs[0].contiguous(), saved[0], saved[2], saved[1]);
    return {made.dy, made.dgates, {}};
  }
};

}  // namespace

at::Tensor detail::expert_products(const at::Tensor& x, const at::Tensor& matrices,
                                   const at::Tensor& ends) {
  if (is_grouped(x, matrices)) return at::_grouped_mm(x, matrices, ends);
  const Tensor y = at::empty({x.size(0), matrices.size(2)}, x.options());
  multiply_experts(x, ends, [&](const ExpertTask& task) {
    const auto multiply = task.is_on_thread ? product_on_thread : product_into;
    multiply(task.part_of(y.narrow(0, task.begin, task.rows)),
             task.part_of(x.narrow(0, task.begin, task.rows)), matrices[task.expert]);
  });
  return y;
}

void detail::add_expert_gradients_now(Parameter& weight, WeightOrder order, const Tensor& x,
                                      const Tensor& dy, const Tensor& ends) {
  const bool are_in_out = order == WeightOrder::InOut;
  const Tensor gradients = expert_matrices(weight.gradient(), order, ends);
  if (is_grouped(x, gradients)) {
    const Tensor made =
        are_in_out ? at::_grouped_mm(x.t(), dy, ends) : at::_grouped_mm(dy.t(), x, ends);
    add_active_rows(are_in_out ? weight.gradient() : gradients, made, ends);
    return;
  }
  multiply_experts(x, ends, [&](const ExpertTask& task) {
    const Tensor dy_here = dy.narrow(0, task.begin, task.rows);
    const Tensor x_here = x.narrow(0, task.begin, task.rows);
    const Tensor gradient = gradients[task.expert];
    if (are_in_out)
      add_product(task.part_of(gradient.t()), task.part_of(x_here.t()), dy_here);
    else
      add_product(task.part_of(gradient), task.part_of(dy_here.t()), x_here);
  });
}

at::Tensor scaled_gates(const at::Tensor& gates, const at::Tensor& chosen, Parameter& scale) {
  return ScaleGatesFunction::apply(gates, scale.anchor(), chosen, &scale);
}

Routing route(const at::Tensor& outputs, const RouterSpec& router, const at::Tensor& bias) {
  const Tensors made = RouteFunction::apply(outputs, &router, &bias);
  return {made[0], made[1]};
}

at::Tensor router_loss(const at::Tensor& outputs, const RouterLossWeights& weights) {
  return RouterLossFunction::apply(outputs, &weights);
}

DispatchedRows dispatch_to_experts(const at::Tensor& x, const at::Tensor& chosen,
                                   const ExpertRange& experts) {
  const Tensors made = SendFunction::apply(x, chosen, &experts);
  return {made[0], made[1], made[2]};
}

at::Tensor expert_linear(const at::Tensor& x, Parameter& weight, const at::Tensor& ends,
                         WeightOrder order, Parameter* bias) {
  const at::Tensor& anchor = bias && !weight.trainable() ? bias->anchor() : weight.anchor();
  return ExpertLinearFunction::apply(x, anchor, ends, &weight, bias, order);
}

at::Tensor combined(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& places) {
  return CombineFunction::apply(x, gates, places);
}

}  // namespace zea
