// SPDX-License-Identifier: Apache-2.0
// Outputs that are passed from unit to unit, and their gradients back, in the type in which the
// reader computes, also between layouts and pipeline ranks.
#include "parallel/engine.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "parallel/exchange_rows.hpp"

namespace zea {

UnitInputs Engine::take_inputs(int unit, int microbatch) {
  UnitInputs inputs;
  for (const UnitInput& input : plan_.model.units[unit].inputs) {
    inputs.push_back(take_output(input.unit, unit, microbatch));
    ZEA_ASSERT(inputs.back() || input.optional);
  }
  return inputs;
}

/// Returns a unit's output that was read with the samples (data.cache_features), if it was.
std::optional<at::Tensor> Engine::cached_state(int source, int microbatch) const {
  if (!plan_.model.is_cached(source)) return std::nullopt;
  const UnitSpec& unit = plan_.model.units[source];
  const std::vector<at::Tensor>& states = (*microbatches_)[microbatch].encoder(unit).states;
  if (states.empty()) return std::nullopt;
  const std::vector<int> read = plan_.model.read_by_projectors(unit.encoder);
  const auto found = std::ranges::find(read, source);
  return states.at(static_cast<size_t>(found - read.begin()));
}

/// Returns the output of unit `source` for `target`, in the type that the target computes in;
/// nothing if the source had no work.
std::optional<at::Tensor> Engine::take_output(int source, int target, int microbatch) {
  const at::ScalarType wanted =
      to_torch(plan_.precision_of(plan_.model.units[target].module).param);
  if (auto state = cached_state(source, microbatch)) return state;
  if (received_.contains({source, microbatch})) return take_received(source, target, microbatch);
  const auto found = saved_.find({source, microbatch});
  if (found == saved_.end()) return std::nullopt;
  Saved& saved = found->second;
  at::Tensor leaf = saved.value;
  if (plan_.model.units[source].module != plan_.model.units[target].module)
    leaf =
        leaf.to(to_torch(plan_.precision_of(plan_.model.units[source].module).output)).to(wanted);
  leaf = leaf.detach();
  leaf.set_requires_grad(saved.needs_gradient);
  if (--saved.consumers == 0) saved.value.reset();
  return leaf;
}

/// Returns an output that came from another pipeline rank group or another layout.
at::Tensor Engine::take_received(int source, int target, int microbatch) {
  Received& received = received_.at({source, microbatch});
  if (!received.value.defined()) received.value = received.arrival.take();
  at::Tensor leaf =
      received.value.to(to_torch(plan_.precision_of(plan_.model.units[target].module).param))
          .detach();
  leaf.set_requires_grad(received.needs_gradient);
  if (--received.consumers == 0) received.value.reset();
  return leaf;
}

/// Adds the gradient of the output of `source` that came from `target` to those of its other
/// consumers.
void Engine::add_gradient(int source, int target, int microbatch, const at::Tensor& gradient) {
  const std::string& module = plan_.model.units[source].module;
  const Precision& precision = plan_.precision_of(module);
  at::Tensor own = gradient;
  if (module != plan_.model.units[target].module) own = own.to(to_torch(precision.output));
  const auto received = received_.find({source, microbatch});
  if (received == received_.end()) own = own.to(to_torch(precision.param));
  at::Tensor& sum = received == received_.end() ? saved_.at({source, microbatch}).gradient
                                                : received->second.gradient;
  sum = sum.defined() ? sum + own : own;
}

/// Whether a microbatch has work for a unit in which something trains, in it or upstream of it.
bool Engine::trains_upstream(int unit, int microbatch) const {
  const UnitSpec& spec = plan_.model.units[unit];
  const Microbatch& of = (*microbatches_)[microbatch];
  if (joins_backward_[unit]) return true;
  if (spec.encoder >= 0 && of.items.of(spec.encoder) == 0) return false;
  return trains_unit_[unit] ||
         std::any_of(spec.inputs.begin(), spec.inputs.end(),
                     [&](const UnitInput& in) { return trains_upstream(in.unit, microbatch); });
}

/// Returns the entry of a unit's output that is made elsewhere.
Engine::Received& Engine::expect(int unit, int microbatch) {
  Received& received = received_[{unit, microbatch}];
  received.needs_gradient = trains_ && trains_upstream(unit, microbatch);
  received.consumers = readers_[unit];
  return received;
}

void Engine::move(int unit, int microbatch) {
  const DType dtype = plan_.precision_of(plan_.model.units[unit].module).output;
  at::Tensor held;
  if (const auto saved = saved_.find({unit, microbatch}); saved != saved_.end()) {
    held = saved->second.value.to(to_torch(dtype));
    if (--saved->second.consumers == 0) saved->second.value.reset();
  }
  const at::Tensor value =
      exchange_rows(mesh_.along(kDecoder, stage_axes()), held, moved_rows(unit, microbatch, false),
                    {plan_.model.decoder.block.hidden, dtype, device_});
  expect(unit, microbatch).value = value;
}

void Engine::move_back(int unit, int microbatch) {
  const Precision& precision = plan_.precision_of(plan_.model.units[unit].module);
  const at::Tensor gradient =
      exchange_rows(mesh_.along(kDecoder, stage_axes()), received_.at({unit, microbatch}).gradient,
                    moved_rows(unit, microbatch, true),
                    {plan_.model.decoder.block.hidden, precision.output, device_});
  received_.erase({unit, microbatch});
  if (const auto saved = saved_.find({unit, microbatch}); saved != saved_.end())
    saved->second.gradient = gradient.to(to_torch(precision.param));
}

/// Returns the exchange between the ranks of this pipeline rank group.
RowTransfer Engine::moved_rows(int unit, int microbatch, bool back) const {
  const EncoderPart& part = (*microbatches_)[microbatch].encoder(plan_.model.units[unit]);
  RowTransfer transfer = back ? part.feature_gradients : part.features;
  const StageGroup& here = plan_.pipeline.stage_groups[plan_.group_of(world_rank_)];
  for (std::vector<int64_t>* counts : {&transfer.sent_counts, &transfer.received_counts})
    *counts = {counts->begin() + here.first_rank, counts->begin() + here.first_rank + here.ranks};
  return transfer;
}

void Engine::send(const Action& action) {
  Saved& saved = saved_.at({action.unit, action.microbatch});
  transfers_.send(action, saved.value, (*microbatches_)[action.microbatch]);
  if (--saved.consumers == 0) saved.value.reset();
}

void Engine::send_gradient(const Action& action) {
  transfers_.send(action, received_.at({action.unit, action.microbatch}).gradient,
                  (*microbatches_)[action.microbatch]);
  received_.erase({action.unit, action.microbatch});
}

}  // namespace zea
