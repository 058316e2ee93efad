// SPDX-License-Identifier: Apache-2.0
// A unit in a microbatch: forward on detached inputs, backward on that unit alone.
#include "parallel/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/error.hpp"

namespace zea {

UnitOutput Engine::call_unit(int unit, int microbatch, const UnitInputs& inputs,
                             bool is_selective) {
  const UnitSpec& spec = plan_.model.units[unit];
  return run_unit_({plan_.model, spec, unit_parameters_[unit], inputs, (*microbatches_)[microbatch],
                    head_, *layers_.at(spec.module), is_selective});
}

void Engine::forward(int unit, int microbatch) {
  for (int buffer : unit_buffers_[unit]) buffers_[buffer]->wait_unshard();
  Saved saved;
  saved.inputs = take_inputs(unit, microbatch);
  saved.consumers = readers_[unit] + reading_groups_[unit];
  if (!trains_) saved.consumers -= training_readers_[unit];
  if (trains_ && joins_backward_[unit]) saved.inputs.front()->set_requires_grad(true);
  saved.needs_gradient =
      trains_ && (trains_unit_[unit] ||
                  std::any_of(saved.inputs.begin(), saved.inputs.end(),
                              [](const auto& input) { return input && input->requires_grad(); }));
  const bool keeps_graph = saved.needs_gradient && !plan_.recomputes(unit);
  {
    c10::AutoGradMode mode(keeps_graph);
    saved.made = call_unit(unit, microbatch, saved.inputs,
                           keeps_graph && plan_.recomputed[unit] == Recompute::Selective);
  }
  if (saved.made.loss.defined()) add_loss(unit, saved.made.loss.detach(), result_.loss);
  if (saved.made.mtp_loss.defined()) add_loss(unit, saved.made.mtp_loss, result_.mtp_loss);
  const bool has_own_experts = plan_.mesh.grid(kDecoder).ep_tp > 1;
  if (saved.made.expert_offsets.defined() && (has_own_experts || is_first_tp_rank(unit)))
    result_.expert_offsets[unit].push_back(saved.made.expert_offsets);
  if (saved.made.value.defined()) saved.value = saved.made.value.detach();
  if (plan_.model.units[unit].kind == UnitKind::Head && saved.value.defined()) {
    result_.outputs[microbatch] =
        saved.value.to(to_torch(plan_.precision_of(plan_.model.units[unit].module).output));
    saved.value.reset();
  }
  if (!keeps_graph) saved.made = {};
  if (!saved.needs_gradient) saved.inputs.clear();
  saved_[{unit, microbatch}] = std::move(saved);
}

bool Engine::is_first_tp_rank(int unit) const {
  return plan_.mesh.coordinate(world_rank_, plan_.model.units[unit].module).tp == 0;
}

/// Stays on the device that has it; of tp ranks, the first one's counts.
void Engine::add_loss(int unit, const at::Tensor& loss, at::Tensor& sum) const {
  if (!is_first_tp_rank(unit)) return;
  const at::Tensor in_double = loss.to(at::kDouble);
  sum = sum.defined() ? sum + in_double : in_double;
}

void Engine::backward(int unit, int microbatch, bool defers_weights) {
  open_gradients(unit);
  Saved saved = std::move(saved_.at({unit, microbatch}));
  saved_.erase({unit, microbatch});
  if (!saved.made.value.defined() && !saved.made.loss.defined()) {
    c10::AutoGradMode mode(true);
    saved.made = call_unit(unit, microbatch, saved.inputs, false);
  }
  if (auto arriving = arriving_gradients_.extract({unit, microbatch}); !arriving.empty())
    for (Arrival& arrival : arriving.mapped()) {
      const at::Tensor gradient = arrival.take().to(saved.made.value.scalar_type());
      saved.gradient = saved.gradient.defined() ? saved.gradient + gradient : gradient;
    }
  run_backward(unit, microbatch, saved, defers_weights);
  for (size_t i = 0; i < saved.inputs.size(); ++i)
    if (saved.inputs[i] && saved.inputs[i]->grad().defined())
      add_gradient(plan_.model.units[unit].inputs[i].unit, unit, microbatch,
                   saved.inputs[i]->grad());
}

void Engine::run_backward(int unit, int microbatch, Saved& saved, bool defers_weights) {
  std::optional<DeferringGradients> deferring;
  if (defers_weights) deferring.emplace(unit_parameters_[unit], deferred_[{unit, microbatch}]);
  std::vector<at::Tensor> made, gradients;
  if (saved.gradient.defined()) {
    made.push_back(saved.made.value);
    gradients.push_back(saved.gradient);
  }
  if (saved.made.loss.requires_grad()) {
    made.push_back(saved.made.loss);
    gradients.push_back(at::ones_like(saved.made.loss));
  }
  ZEA_ASSERT(!made.empty());
  torch::autograd::backward(made, gradients);
}

void Engine::backward_weight(int unit, int microbatch) {
  open_gradients(unit);
  deferred_.at({unit, microbatch}).run();
  deferred_.erase({unit, microbatch});
}

}  // namespace zea
