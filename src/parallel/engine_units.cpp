// SPDX-License-Identifier: Apache-2.0
// A unit in a microbatch: forward on detached inputs, backward on that unit alone.
#include "parallel/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "core/error.hpp"

namespace zea {

UnitOutput Engine::call_unit(int unit, int microbatch, const UnitInputs& inputs) {
  const UnitSpec& spec = plan_.model.units[unit];
  return run_unit_(plan_.model, spec, unit_parameters_[unit], inputs, (*microbatches_)[microbatch],
                   head_, *layers_.at(spec.module));
}

void Engine::forward(int unit, int microbatch) {
  for (int buffer : unit_buffers_[unit]) buffers_[buffer]->wait_unshard();
  Kept kept;
  kept.inputs = take_inputs(unit, microbatch);
  kept.consumers = readers_[unit] + reading_places_[unit];
  kept.needs_gradient =
      trains_ && (trains_unit_[unit] ||
                  std::any_of(kept.inputs.begin(), kept.inputs.end(),
                              [](const auto& input) { return input && input->requires_grad(); }));
  const bool keeps_graph = kept.needs_gradient && !plan_.recomputes(unit);
  {
    c10::AutoGradMode mode(keeps_graph);
    kept.made = call_unit(unit, microbatch, kept.inputs);
  }
  if (kept.made.loss.defined()) add_loss(unit, kept.made.loss.detach());
  if (kept.made.value.defined()) kept.value = kept.made.value.detach();
  if (plan_.model.units[unit].kind == UnitKind::Head && kept.value.defined()) {
    result_.outputs[microbatch] =
        kept.value.to(to_torch(plan_.precision_of(plan_.model.units[unit].module).output));
    kept.value.reset();
  }
  if (!keeps_graph) kept.made = {};
  if (!kept.needs_gradient) kept.inputs.clear();
  kept_[{unit, microbatch}] = std::move(kept);
}

/// Stays on the device that has it; of tp ranks, the first one's counts.
void Engine::add_loss(int unit, const at::Tensor& loss) {
  if (plan_.mesh.coordinate(world_rank_, plan_.model.units[unit].module).tp != 0) return;
  const at::Tensor in_double = loss.to(at::kDouble);
  result_.loss = result_.loss.defined() ? result_.loss + in_double : in_double;
}

void Engine::backward(int unit, int microbatch, bool puts_off_weights) {
  open_gradients(unit);
  Kept kept = std::move(kept_.at({unit, microbatch}));
  kept_.erase({unit, microbatch});
  if (!kept.made.value.defined() && !kept.made.loss.defined()) {
    c10::AutoGradMode mode(true);
    kept.made = call_unit(unit, microbatch, kept.inputs);
  }
  for (Arrival& arrival : kept.gradients) {
    const at::Tensor gradient = arrival.take().to(kept.made.value.scalar_type());
    kept.gradient = kept.gradient.defined() ? kept.gradient + gradient : gradient;
  }
  run_backward(unit, microbatch, kept, puts_off_weights);
  for (size_t i = 0; i < kept.inputs.size(); ++i)
    if (kept.inputs[i] && kept.inputs[i]->grad().defined())
      add_gradient(plan_.model.units[unit].inputs[i].unit, unit, microbatch,
                   kept.inputs[i]->grad());
}

void Engine::run_backward(int unit, int microbatch, Kept& kept, bool puts_off_weights) {
  std::optional<PuttingOff> putting_off;
  if (puts_off_weights) putting_off.emplace(unit_parameters_[unit], deferred_[{unit, microbatch}]);
  std::vector<at::Tensor> made, gradients;
  if (kept.gradient.defined()) {
    made.push_back(kept.made.value);
    gradients.push_back(kept.gradient);
  }
  if (kept.made.loss.requires_grad()) {
    made.push_back(kept.made.loss);
    gradients.push_back(at::ones_like(kept.made.loss));
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
