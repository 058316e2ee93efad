// SPDX-License-Identifier: Apache-2.0
// A unit in a microbatch: forward on detached inputs, backward on that unit alone.
#include "zea/parallel/engine.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {

at::Tensor Engine::call_unit(int unit, int microbatch, const UnitInputs& inputs) {
  const UnitSpec& spec = plan_.model.units[unit];
  return run_unit(plan_.model, spec, unit_parameters_[unit], inputs, (*microbatches_)[microbatch],
                  head_, *layers_.at(spec.module));
}

void Engine::forward(int unit, int microbatch) {
  for (int group : unit_groups_[unit]) groups_[group]->wait_unshard();
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
    kept.output = call_unit(unit, microbatch, kept.inputs);
  }
  kept.value = kept.output.detach();
  if (plan_.model.units[unit].kind == UnitKind::Head) {
    if (head_ == HeadOutput::Loss)
      add_loss(microbatch, kept.value);
    else
      result_.outputs[microbatch] =
          kept.value.to(to_torch(plan_.precision_of(plan_.model.units[unit].module).output));
    kept.value.reset();
  }
  if (!keeps_graph) kept.output.reset();
  if (!kept.needs_gradient) kept.inputs.clear();
  kept_[{unit, microbatch}] = std::move(kept);
}

/// On the device that has it, which is waited for once a walk.
void Engine::add_loss(int microbatch, const at::Tensor& loss) {
  if (!(*microbatches_)[microbatch].counts) return;
  const at::Tensor in_double = loss.to(at::kDouble);
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + in_double : in_double;
}

void Engine::backward(int unit, int microbatch, bool puts_off_weights) {
  open_gradients(unit);
  Kept kept = std::move(kept_.at({unit, microbatch}));
  kept_.erase({unit, microbatch});
  if (!kept.output.defined()) {
    c10::AutoGradMode mode(true);
    kept.output = call_unit(unit, microbatch, kept.inputs);
  }
  for (Arrival& arrival : kept.gradients) {
    const at::Tensor gradient = arrival.take().to(kept.output.scalar_type());
    kept.gradient = kept.gradient.defined() ? kept.gradient + gradient : gradient;
  }
  if (!kept.gradient.defined()) {
    ZEA_ASSERT(plan_.model.units[unit].kind == UnitKind::Head);
    kept.gradient = at::ones_like(kept.output);
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
  torch::autograd::backward({kept.output}, {kept.gradient});
}

void Engine::backward_weight(int unit, int microbatch) {
  open_gradients(unit);
  deferred_.at({unit, microbatch}).run();
  deferred_.erase({unit, microbatch});
}

}  // namespace zea
