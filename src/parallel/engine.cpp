// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/engine.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/parallel/exchange_rows.hpp"
#include "zea/parallel/tensor_layers.hpp"

namespace zea {

Engine::Engine(const Plan& plan, Mesh& mesh, at::Device device)
    : plan_(plan),
      mesh_(mesh),
      world_rank_(mesh.rank()),
      device_(device),
      unit_groups_(groups_of_units(plan.model, plan.groups)),
      transfers_(plan, mesh, device) {
  build_slots();
  build_groups();
  build_units();
  build_layers();
}

/// Where all sharded modules have the same shard group, its ranks reach each other's gradients.
void Engine::build_slots() {
  std::map<std::vector<int>, Collectives*> shard_groups;  // by their ranks
  for (size_t g = 0; g < plan_.groups.size(); ++g)
    if (plan_.shardings[g].shards > 1 && plan_.holds(world_rank_, static_cast<int>(g))) {
      const std::string& module = plan_.groups[g].module;
      shard_groups.emplace(plan_.mesh.group(world_rank_, module, shard_axes()),
                           &mesh_.along(module, shard_axes()));
    }
  Collectives* shard_group = shard_groups.size() == 1 ? shard_groups.begin()->second : nullptr;
  const SlotPlans& slots = plan_.slots[plan_.place_of(world_rank_)];
  gathered_slots_ = std::make_unique<Slots>(slots.gathered, ledger_, nullptr, device_);
  gradient_slots_ = std::make_unique<Slots>(slots.gradients, ledger_, shard_group, device_);
  wire_slots_ = std::make_unique<Slots>(slots.wire, ledger_, shard_group, device_);
}

void Engine::build_groups() {
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    if (!plan_.holds(world_rank_, static_cast<int>(g))) {
      groups_.emplace_back();
      continue;
    }
    const std::string& module = plan_.groups[g].module;
    const Sharding& sharding = plan_.shardings[g];
    ShardedGroupContext context{.gathered = *gathered_slots_,
                                .gradients = *gradient_slots_,
                                .wire = *wire_slots_,
                                .ledger = ledger_,
                                .device = device_};
    if (sharding.shards > 1) context.shard_group = &mesh_.along(module, shard_axes());
    if (plan_.mesh.grid(module).shard_subgroup > 0)
      context.shard_subgroup = &mesh_.shard_subgroup(module);
    if (sharding.replicas > 1)
      context.replicas =
          sharding.gathered() ? &mesh_.shard_replicas(module) : &mesh_.along(module, token_axes());
    groups_.push_back(
        std::make_unique<ShardedGroup>(plan_, static_cast<int>(g), world_rank_, context));
  }
}

void Engine::build_units() {
  const int here = plan_.place_of(world_rank_);
  const std::vector<UnitSpec>& units = plan_.model.units;
  readers_.resize(units.size());
  reading_places_.resize(units.size());
  for (const PipelineEdge& edge : edges_of(plan_.pipeline, plan_.model))
    if (edge.from == here) ++reading_places_[edge.unit];
  for (size_t u = 0; u < units.size(); ++u) {
    trains_unit_.push_back(
        std::any_of(units[u].params.begin(), units[u].params.end(),
                    [&](int param) { return plan_.model.params[param].trainable; }));
    unit_parameters_.emplace_back();
    if (plan_.pipeline.place_of_unit(static_cast<int>(u)) != here) {
      unit_groups_[u].clear();
      continue;
    }
    for (const UnitInput& input : units[u].inputs) ++readers_[input.unit];
    for (int param : units[u].params)
      for (int group : unit_groups_[u])
        if (Parameter* found = groups_[group]->parameter(param))
          unit_parameters_[u].push_back(found);
  }
}

void Engine::build_layers() {
  for (const ModuleGrid& grid : plan_.mesh.modules) {
    if (!plan_.mesh.has(world_rank_, grid.module)) continue;
    if (grid.tp == 1 && grid.cp == 1) {
      layers_[grid.module] = std::make_unique<Layers>();
      continue;
    }
    layers_[grid.module] = std::make_unique<TensorLayers>(TensorLayersOptions{
        .tp = grid.tp > 1 ? &mesh_.along(grid.module, {Axis::Tp}) : nullptr,
        .sequence_parallel = plan_.token_shardings.at(grid.module).sequence_parallel,
        .cp_inner = grid.cp_inner > 1 ? &mesh_.cp_inner(grid.module) : nullptr,
        .cp_outer = grid.cp > grid.cp_inner ? &mesh_.cp_outer(grid.module) : nullptr});
  }
}

MicrobatchOptions Engine::microbatch_options() const {
  return {.dtype = to_torch(plan_.precision.param),
          .vision_dtype = to_torch(plan_.precision_of("vision").param),
          .audio_dtype = to_torch(plan_.precision_of("audio").param),
          .device = device_,
          .images_both_ways = plan_.options.llm.image_attention == "bidirectional",
          .replica = plan_.replica_layout(world_rank_)};
}

void Engine::broadcast_weights() {
  for (auto& group : groups_)
    if (group) group->broadcast_master();
}

WalkResult Engine::run(const std::vector<Action>& actions,
                       const std::vector<Microbatch>& microbatches, HeadOutput head) {
  microbatches_ = &microbatches;
  head_ = head;
  trains_ = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardInput;
  });
  result_ = {};
  loss_sum_.reset();
  result_.outputs.resize(microbatches.size());
  for (const Action& action : actions) {
    const ActionRecord::Action recorded(mesh_.record(),
                                        describe(action, plan_.model, plan_.groups));
    run_action(action);
    progress();
  }
  {
    const ActionRecord::Action recorded(mesh_.record(), "finish reductions and transfers");
    finish_reductions();
    transfers_.finish();
  }
  ZEA_ASSERT(deferred_.empty());
  // What was kept for a backward had one.
  ZEA_ASSERT(std::none_of(kept_.begin(), kept_.end(),
                          [](const auto& kept) { return kept.second.output.requires_grad(); }));
  kept_.clear();
  arrived_.clear();
  if (loss_sum_.defined()) result_.loss_sum = loss_sum_.item<double>();
  return std::move(result_);
}

void Engine::run_action(const Action& action) {
  switch (action.kind) {
    case ActionKind::Unshard:
      return groups_[action.group]->start_unshard();
    case ActionKind::UnshardSubgroup:
      return groups_[action.group]->start_unshard_from_subgroup();
    case ActionKind::Reshard:
      return groups_[action.group]->reshard();
    case ActionKind::ReshardSubgroup:
      return groups_[action.group]->reshard_to_subgroup();
    case ActionKind::Forward:
      return forward(action.unit, action.microbatch);
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
      return backward(action.unit, action.microbatch, action.kind == ActionKind::BackwardInput);
    case ActionKind::BackwardWeight:
      return backward_weight(action.unit, action.microbatch);
    case ActionKind::Move:
      return move(action.unit, action.microbatch);
    case ActionKind::MoveBack:
      return move_back(action.unit, action.microbatch);
    case ActionKind::Send:
      return send(action);
    case ActionKind::Receive:
      expect(action.unit, action.microbatch).arrival =
          transfers_.receive(action, (*microbatches_)[action.microbatch]);
      return;
    case ActionKind::SendGradient:
      return send_gradient(action);
    case ActionKind::ReceiveGradient:
      kept_.at({action.unit, action.microbatch})
          .gradients.push_back(transfers_.receive(action, (*microbatches_)[action.microbatch]));
      return;
    case ActionKind::ReduceShard:
      return reduce_shard(action.group);
    case ActionKind::ReduceReplicas:
      return reduce_replicas(action.group);
  }
}

/// What another place, or another layout, made.
at::Tensor Engine::take_arrived(int source, int target, int microbatch) {
  Arrived& arrived = arrived_.at({source, microbatch});
  if (!arrived.value.defined()) arrived.value = arrived.arrival.take();
  at::Tensor leaf =
      arrived.value.to(to_torch(plan_.precision_of(plan_.model.units[target].module).param))
          .detach();
  leaf.set_requires_grad(arrived.needs_gradient);
  if (--arrived.consumers == 0) arrived.value.reset();
  return leaf;
}

/// What unit `source` gives to `target`, in the type that the target computes in; nothing where the
/// source had no work.
std::optional<at::Tensor> Engine::take_output(int source, int target, int microbatch) {
  const at::ScalarType wanted =
      to_torch(plan_.precision_of(plan_.model.units[target].module).param);
  if (arrived_.contains({source, microbatch})) return take_arrived(source, target, microbatch);
  const auto found = kept_.find({source, microbatch});
  if (found == kept_.end()) return std::nullopt;
  Kept& kept = found->second;
  at::Tensor leaf = kept.value;
  if (plan_.model.units[source].module != plan_.model.units[target].module)
    leaf =
        leaf.to(to_torch(plan_.precision_of(plan_.model.units[source].module).output)).to(wanted);
  leaf = leaf.detach();
  leaf.set_requires_grad(kept.needs_gradient);
  if (--kept.consumers == 0) kept.value.reset();
  return leaf;
}

UnitInputs Engine::take_inputs(int unit, int microbatch) {
  UnitInputs inputs;
  for (const UnitInput& input : plan_.model.units[unit].inputs) {
    inputs.push_back(take_output(input.unit, unit, microbatch));
    ZEA_ASSERT(inputs.back() || input.optional);
  }
  return inputs;
}

/// The gradient of what `source` gave to `target` joins those of its other consumers.
void Engine::add_gradient(int source, int target, int microbatch, const at::Tensor& gradient) {
  const std::string& module = plan_.model.units[source].module;
  const Precision& precision = plan_.precision_of(module);
  at::Tensor own = gradient;
  if (module != plan_.model.units[target].module) own = own.to(to_torch(precision.output));
  const auto arrived = arrived_.find({source, microbatch});
  if (arrived == arrived_.end()) own = own.to(to_torch(precision.param));
  at::Tensor& sum = arrived == arrived_.end() ? kept_.at({source, microbatch}).gradient
                                              : arrived->second.gradient;
  sum = sum.defined() ? sum + own : own;
}

/// Whether a microbatch has work for a unit in which something trains, in it or upstream of it.
bool Engine::trains_upstream(int unit, int microbatch) const {
  const UnitSpec& spec = plan_.model.units[unit];
  const Microbatch& of = (*microbatches_)[microbatch];
  if (spec.module != "llm" && of.items.of(spec.module) == 0) return false;
  return trains_unit_[unit] ||
         std::any_of(spec.inputs.begin(), spec.inputs.end(),
                     [&](const UnitInput& in) { return trains_upstream(in.unit, microbatch); });
}

/// The place of a unit's output that was made elsewhere.
Engine::Arrived& Engine::expect(int unit, int microbatch) {
  Arrived& arrived = arrived_[{unit, microbatch}];
  arrived.needs_gradient = trains_ && trains_upstream(unit, microbatch);
  arrived.consumers = readers_[unit];
  return arrived;
}

void Engine::move(int unit, int microbatch) {
  const DType dtype = plan_.precision_of(plan_.model.units[unit].module).output;
  at::Tensor held;
  if (const auto kept = kept_.find({unit, microbatch}); kept != kept_.end()) {
    held = kept->second.value.to(to_torch(dtype));
    if (--kept->second.consumers == 0) kept->second.value.reset();
  }
  const at::Tensor value =
      exchange_rows(mesh_.along("llm", stage_axes()), held, moved_rows(unit, microbatch, false),
                    {plan_.model.text.hidden, dtype, device_});
  expect(unit, microbatch).value = value;
}

void Engine::move_back(int unit, int microbatch) {
  const Precision& precision = plan_.precision_of(plan_.model.units[unit].module);
  const at::Tensor gradient = exchange_rows(
      mesh_.along("llm", stage_axes()), arrived_.at({unit, microbatch}).gradient,
      moved_rows(unit, microbatch, true), {plan_.model.text.hidden, precision.output, device_});
  arrived_.erase({unit, microbatch});
  if (const auto kept = kept_.find({unit, microbatch}); kept != kept_.end())
    kept->second.gradient = gradient.to(to_torch(precision.param));
}

/// Between the ranks of this place alone.
RowTransfer Engine::moved_rows(int unit, int microbatch, bool back) const {
  const EncoderPart& part = (*microbatches_)[microbatch].encoder(plan_.model.units[unit].module);
  RowTransfer transfer = back ? part.feature_gradients : part.features;
  const PipelinePlace& here = plan_.pipeline.places[plan_.place_of(world_rank_)];
  for (std::vector<int64_t>* counts : {&transfer.sent_counts, &transfer.received_counts})
    *counts = {counts->begin() + here.first_rank, counts->begin() + here.first_rank + here.ranks};
  return transfer;
}

void Engine::send(const Action& action) {
  Kept& kept = kept_.at({action.unit, action.microbatch});
  transfers_.send(action, kept.value, (*microbatches_)[action.microbatch]);
  if (--kept.consumers == 0) kept.value.reset();
}

void Engine::send_gradient(const Action& action) {
  transfers_.send(action, arrived_.at({action.unit, action.microbatch}).gradient,
                  (*microbatches_)[action.microbatch]);
  arrived_.erase({action.unit, action.microbatch});
}

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
    at::AutoGradMode mode(keeps_graph);
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

void Engine::open_gradients(int unit) {
  for (int group : unit_groups_[unit]) {
    groups_[group]->wait_unshard();
    if (reducing_shard_ == group) finish_reduce_shard();  // tied parameters: the other unit's share
    if (groups_[group]->trainable()) open_gradient(group);
  }
}

void Engine::backward(int unit, int microbatch, bool puts_off_weights) {
  open_gradients(unit);
  Kept kept = std::move(kept_.at({unit, microbatch}));
  kept_.erase({unit, microbatch});
  if (!kept.output.defined()) {
    at::AutoGradMode mode(true);
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

/// A gradient whose reduction is under way may still have the slot: in a step in which some units
/// have no work, fewer lie between them than the plan of slots assumes.
void Engine::open_gradient(int group) {
  if (plan_.shardings[group].gathered()) {
    const int holder = gradient_slots_->holder(group);
    if (holder >= 0 && holder != group) {
      ZEA_ASSERT(reducing_shard_ == holder);
      finish_reduce_shard();
    }
  }
  groups_[group]->open_gradient();
}

void Engine::reduce_shard(int group) {
  // At most one is under way: with the one that the next backward fills, two unsharded gradients
  // exist.
  finish_reduce_shard();
  reducing_shard_ = group;
  groups_[group]->start_reduce_shard();
}

void Engine::finish_reduce_shard() {
  if (reducing_shard_) groups_[*reducing_shard_]->finish_reduce_shard();
  reducing_shard_.reset();
}

void Engine::reduce_replicas(int group) {
  if (reducing_shard_ == group) finish_reduce_shard();
  groups_[group]->start_reduce_replicas();
  reducing_replicas_.push_back(group);
}

void Engine::finish_reductions() {
  finish_reduce_shard();
  for (int group : reducing_replicas_) groups_[group]->finish_reduce_replicas();
  reducing_replicas_.clear();
}

void Engine::progress() {
  for (auto& group : groups_)
    if (group) group->progress();
  transfers_.progress();
}

}  // namespace zea
