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
      unit_groups_(groups_of_units(plan.model, plan.groups)) {
  build_slots();
  build_groups();
  build_units();
  build_layers();
}

/// Where all sharded modules have the same shard group, its ranks reach each other's gradients.
void Engine::build_slots() {
  std::map<std::vector<int>, Collectives*> shard_groups;  // by their ranks
  for (size_t g = 0; g < plan_.groups.size(); ++g)
    if (plan_.shardings[g].shards > 1) {
      const std::string& module = plan_.groups[g].module;
      shard_groups.emplace(plan_.mesh.group(world_rank_, module, shard_axes()),
                           &mesh_.along(module, shard_axes()));
    }
  Collectives* shard_group = shard_groups.size() == 1 ? shard_groups.begin()->second : nullptr;
  const SlotPlans& slots = plan_.slots;
  gathered_slots_ = std::make_unique<Slots>(slots.gathered, ledger_, nullptr, device_);
  gradient_slots_ = std::make_unique<Slots>(slots.gradients, ledger_, shard_group, device_);
  wire_slots_ = std::make_unique<Slots>(slots.wire, ledger_, shard_group, device_);
}

void Engine::build_groups() {
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
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
  consumers_.resize(plan_.model.units.size());
  for (size_t u = 0; u < plan_.model.units.size(); ++u) {
    const UnitSpec& unit = plan_.model.units[u];
    for (const UnitInput& input : unit.inputs)
      consumers_[input.unit].push_back(static_cast<int>(u));
    std::vector<Parameter*> parameters;
    for (int param : unit.params)
      for (int group : unit_groups_[u])
        if (Parameter* found = groups_[group]->parameter(param)) parameters.push_back(found);
    trains_unit_.push_back(
        std::any_of(parameters.begin(), parameters.end(),
                    [](const Parameter* parameter) { return parameter->trainable(); }));
    unit_parameters_.push_back(std::move(parameters));
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
          .vision_dtype = to_torch(plan_.vision_precision.param),
          .device = device_,
          .images_both_ways = plan_.options.llm.image_attention == "bidirectional",
          .replica = plan_.replica_layout(world_rank_)};
}

void Engine::broadcast_weights() {
  for (auto& group : groups_) group->broadcast_master();
}

WalkResult Engine::run(const std::vector<Action>& actions,
                       const std::vector<Microbatch>& microbatches, HeadOutput head) {
  microbatches_ = &microbatches;
  head_ = head;
  trains_ = std::any_of(actions.begin(), actions.end(),
                        [](const Action& action) { return action.kind == ActionKind::Backward; });
  result_ = {};
  result_.outputs.resize(microbatches.size());
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::Unshard:
        groups_[action.group]->start_unshard();
        break;
      case ActionKind::UnshardSubgroup:
        groups_[action.group]->start_unshard_from_subgroup();
        break;
      case ActionKind::Reshard:
        groups_[action.group]->reshard();
        break;
      case ActionKind::ReshardSubgroup:
        groups_[action.group]->reshard_to_subgroup();
        break;
      case ActionKind::Forward:
        forward(action.unit, action.microbatch);
        break;
      case ActionKind::Backward:
        backward(action.unit, action.microbatch);
        break;
      case ActionKind::Move:
        move(action.unit, action.microbatch);
        break;
      case ActionKind::MoveBack:
        move_back(action.unit, action.microbatch);
        break;
      case ActionKind::ReduceShard:
        reduce_shard(action.group);
        break;
      case ActionKind::ReduceReplicas:
        reduce_replicas(action.group);
        break;
    }
    progress();
  }
  finish_reductions();
  kept_.clear();
  moved_.clear();
  return std::move(result_);
}

bool Engine::recomputes(int unit) const {
  const int64_t every = plan_.options.model.activation_checkpointing;
  // The head's backward follows its forward at once: keeping its graph costs nothing.
  return trains_ && every > 0 && unit % every == 0 &&
         plan_.model.units[unit].kind != UnitKind::Head;
}

/// What unit `source` gives to `target`, in the type that the target computes in; nothing where the
/// source had no work.
std::optional<at::Tensor> Engine::take_output(int source, int target, int microbatch) {
  const at::ScalarType wanted =
      to_torch(plan_.precision_of(plan_.model.units[target].module).param);
  const auto moved = moved_.find({source, microbatch});
  if (moved != moved_.end()) {
    // One unit reads what another module made: the merge.
    ZEA_ASSERT(consumers_[source].size() == 1);
    at::Tensor leaf = std::move(moved->second.value).to(wanted).detach();
    leaf.set_requires_grad(moved->second.needs_gradient);
    if (!moved->second.needs_gradient) moved_.erase(moved);
    return leaf;
  }
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
  if (const auto moved = moved_.find({source, microbatch}); moved != moved_.end()) {
    moved->second.gradient = own;
    return;
  }
  own = own.to(to_torch(precision.param));
  at::Tensor& sum = kept_.at({source, microbatch}).gradient;
  sum = sum.defined() ? sum + own : own;
}

bool Engine::trains_upstream(int unit) const {
  const auto& inputs = plan_.model.units[unit].inputs;
  return trains_unit_[unit] || std::any_of(inputs.begin(), inputs.end(), [&](const UnitInput& in) {
           return trains_upstream(in.unit);
         });
}

void Engine::move(int unit, int microbatch) {
  const DType dtype = plan_.precision_of(plan_.model.units[unit].module).output;
  Moved& moved = moved_[{unit, microbatch}];
  moved.needs_gradient = trains_ && trains_upstream(unit);
  at::Tensor held;
  if (const auto kept = kept_.find({unit, microbatch}); kept != kept_.end()) {
    held = kept->second.value.to(to_torch(dtype));
    if (--kept->second.consumers == 0) kept->second.value.reset();
  }
  moved.value = exchange_rows(mesh_.replica(), held, (*microbatches_)[microbatch].features,
                              {plan_.model.text.hidden, dtype, device_});
}

void Engine::move_back(int unit, int microbatch) {
  const Precision& precision = plan_.precision_of(plan_.model.units[unit].module);
  const at::Tensor gradient = exchange_rows(mesh_.replica(), moved_.at({unit, microbatch}).gradient,
                                            (*microbatches_)[microbatch].feature_gradients,
                                            {plan_.model.text.hidden, precision.output, device_});
  moved_.erase({unit, microbatch});
  if (const auto kept = kept_.find({unit, microbatch}); kept != kept_.end())
    kept->second.gradient = gradient.to(to_torch(precision.param));
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
  kept.consumers = static_cast<int>(consumers_[unit].size());
  kept.needs_gradient =
      trains_ && (trains_unit_[unit] ||
                  std::any_of(kept.inputs.begin(), kept.inputs.end(),
                              [](const auto& input) { return input && input->requires_grad(); }));
  const bool keeps_graph = kept.needs_gradient && !recomputes(unit);
  {
    at::AutoGradMode mode(keeps_graph);
    kept.output = call_unit(unit, microbatch, kept.inputs);
  }
  kept.value = kept.output.detach();
  if (plan_.model.units[unit].kind == UnitKind::Head) {
    if (head_ == HeadOutput::Loss)
      result_.loss_sum += (*microbatches_)[microbatch].counts ? kept.value.item<double>() : 0;
    else
      result_.outputs[microbatch] =
          kept.value.to(to_torch(plan_.precision_of(plan_.model.units[unit].module).output));
    kept.value.reset();
  }
  if (!keeps_graph) kept.output.reset();
  if (!kept.needs_gradient) kept.inputs.clear();
  kept_[{unit, microbatch}] = std::move(kept);
}

void Engine::backward(int unit, int microbatch) {
  for (int group : unit_groups_[unit]) {
    groups_[group]->wait_unshard();
    if (reducing_shard_ == group) finish_reduce_shard();  // tied parameters: the other unit's share
    if (groups_[group]->trainable()) open_gradient(group);
  }
  Kept kept = std::move(kept_.at({unit, microbatch}));
  kept_.erase({unit, microbatch});
  if (!kept.output.defined()) {
    at::AutoGradMode mode(true);
    kept.output = call_unit(unit, microbatch, kept.inputs);
  }
  if (!kept.gradient.defined()) {
    ZEA_ASSERT(plan_.model.units[unit].kind == UnitKind::Head);
    kept.gradient = at::ones_like(kept.output);
  }
  torch::autograd::backward({kept.output}, {kept.gradient});
  for (size_t i = 0; i < kept.inputs.size(); ++i)
    if (kept.inputs[i] && kept.inputs[i]->grad().defined())
      add_gradient(plan_.model.units[unit].inputs[i].unit, unit, microbatch,
                   kept.inputs[i]->grad());
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
  for (auto& group : groups_) group->progress();
}

}  // namespace zea
