// SPDX-License-Identifier: Apache-2.0
// A rank's part of the model, made from the plan: buffers and their slots, the parameters of its
// units, the layers of its modules.
#include "parallel/engine.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "layout/reduction.hpp"
#include "parallel/device.hpp"
#include "parallel/tp_layers.hpp"
#include "schedule/communicators.hpp"

namespace zea {

Engine::Engine(const Plan& plan, Mesh& mesh, at::Device device, RunUnit run_unit,
               ReadGradient read_gradient)
    : plan_(plan),
      mesh_(mesh),
      world_rank_(mesh.rank()),
      device_(device),
      run_unit_(std::move(run_unit)),
      read_gradient_(std::move(read_gradient)),
      unit_buffers_(buffers_of_units(plan.model, plan.buffers)),
      transfers_(plan, mesh, device) {
  check_launch_order(plan, device);
  build_slots();
  build_buffers();
  build_states();
  build_units();
  build_layers();
}

/// If all sharded buffers have the same shard group, its ranks share memory for gradients.
void Engine::build_slots() {
  std::map<std::vector<int>, Collectives*> shard_groups;  // by their ranks
  for (size_t g = 0; g < plan_.buffers.size(); ++g)
    if (plan_.shardings[g].shards > 1 && plan_.holds(world_rank_, static_cast<int>(g))) {
      const std::string& module = plan_.buffers[g].module;
      const std::vector<Axis>& axes = plan_.shardings[g].sharded_over;
      shard_groups.emplace(plan_.mesh.group(world_rank_, module, axes), &mesh_.along(module, axes));
    }
  Collectives* shard_group = shard_groups.size() == 1 ? shard_groups.begin()->second : nullptr;
  const SlotPlans& slots = plan_.slots[plan_.group_of(world_rank_)];
  gathered_slots_ = std::make_unique<Slots>(slots.gathered, ledger_, nullptr, device_);
  gradient_slots_ = std::make_unique<Slots>(slots.gradients, ledger_, shard_group, device_);
  wire_slots_ = std::make_unique<Slots>(slots.wire, ledger_, shard_group, device_);
  if (!device_.is_cpu() && std::ranges::any_of(plan_.shardings, &Sharding::pins_memory))
    host_copies_.emplace(device_);
}

void Engine::build_buffers() {
  const std::vector<bool> of_linears = linear_weights(plan_.model);
  for (size_t g = 0; g < plan_.buffers.size(); ++g) {
    if (!plan_.holds(world_rank_, static_cast<int>(g))) {
      buffers_.emplace_back();
      continue;
    }
    const std::string& module = plan_.buffers[g].module;
    const Sharding& sharding = plan_.shardings[g];
    ShardedBufferContext context{.gathered = *gathered_slots_,
                                 .gradients = *gradient_slots_,
                                 .wire = *wire_slots_,
                                 .ledger = ledger_,
                                 .device = device_};
    if (sharding.pins_memory && host_copies_) context.copies = &*host_copies_;
    if (sharding.shards > 1) {
      context.shard_group = &mesh_.along(module, sharding.sharded_over);
      if (plan_.buffers[g].trainable)
        context.reducing_group = &mesh_.reducing_along(module, sharding.sharded_over);
    }
    if (sharding.subgroup > 0) context.shard_subgroup = &mesh_.shard_subgroup(module);
    if (joins_replicas(plan_, static_cast<int>(g)))
      context.replicas = &mesh_.along(module, sharding.summed_over);
    buffers_.push_back(std::make_unique<ShardedBuffer>(plan_, static_cast<int>(g), world_rank_,
                                                       context, of_linears));
  }
}

void Engine::build_states() {
  for (const auto& buffer : buffers_) {
    std::vector<Buffer>& states = states_.emplace_back();
    if (!buffer || !buffer->trainable()) continue;
    for (const StateSpec& state : plan_.optimizer.states)
      states.push_back(
          buffer->owned(state_elements(state, buffer->layout(), plan_.param_rules, buffer->range()),
                        to_torch(state.type(plan_.precision.master))));
  }
}

const at::Tensor& Engine::state(const ShardedBuffer& buffer, const std::string& name) const {
  const std::vector<Buffer>& states = states_[buffer.index()];
  for (size_t s = 0; s < states.size(); ++s)
    if (plan_.optimizer.states[s].name == name) return states[s].tensor();
  throw InternalError(buffer.layout().name + " has no " + name);
}

void Engine::build_units() {
  const int here = plan_.group_of(world_rank_);
  const std::vector<UnitSpec>& units = plan_.model.units;
  readers_.resize(units.size());
  training_readers_.resize(units.size());
  reading_groups_.resize(units.size());
  for (const PipelineEdge& edge : edges_of(plan_.pipeline, plan_.model))
    if (edge.from == here) ++reading_groups_[edge.unit];
  const std::vector<bool> has_gradient = plan_.model.units_with_gradient();
  for (size_t u = 0; u < units.size(); ++u) {
    trains_unit_.push_back(plan_.model.trains(units[u].params));
    joins_backward_.push_back(plan_.dealing.expert_group > 1 && has_gradient[u] &&
                              has_joint_backward(units[u]));
    unit_parameters_.emplace_back();
    if (plan_.pipeline.group_of_unit(static_cast<int>(u)) != here) {
      unit_buffers_[u].clear();
      continue;
    }
    for (const UnitInput& input : units[u].inputs) {
      ++readers_[input.unit];
      if (units[u].is_mtp) ++training_readers_[input.unit];
    }
    for (int param : units[u].params)
      for (int buffer : unit_buffers_[u])
        if (Parameter* found = buffers_[buffer]->parameter(param))
          unit_parameters_[u].push_back(found);
  }
}

void Engine::build_layers() {
  for (const ModuleGrid& grid : plan_.mesh.modules) {
    if (!plan_.mesh.has(world_rank_, grid.module)) continue;
    if (grid.tp == 1 && grid.cp == 1 && grid.ep() == 1) {
      layers_[grid.module] = std::make_unique<Layers>();
      continue;
    }
    layers_[grid.module] = std::make_unique<TpLayers>(TpLayersOptions{
        .tp = grid.tp > 1 ? &mesh_.along(grid.module, {Axis::Tp}) : nullptr,
        .tp_chunks = grid.tp_chunks,
        .sequence_parallel = plan_.token_shardings.at(grid.module).sequence_parallel,
        .cp_inner = grid.cp_inner > 1 ? &mesh_.cp_inner(grid.module) : nullptr,
        .cp_outer = grid.cp > grid.cp_inner ? &mesh_.cp_outer(grid.module) : nullptr,
        .ep_cp = grid.ep_cp > 1 ? &mesh_.along(grid.module, {Axis::EpCp}) : nullptr,
        .ep_dp_shard =
            grid.ep_dp_shard > 1 ? &mesh_.along(grid.module, {Axis::EpDpShard}) : nullptr,
        .ep_rank = plan_.mesh.rank_along(world_rank_, grid.module, ep_axes(grid)),
        .ep = grid.ep(),
        .ep_tp = grid.ep_tp,
        .ep_exchanges = grid.ep_exchanges,
        .cp = grid.cp > 1 && plan_.model.block(grid.module).carries_state()
                  ? &mesh_.along(grid.module, {Axis::Cp})
                  : nullptr});
  }
  // The communicator is made here: in a step the host would wait for the other ranks.
  if (moves_features(plan_, world_rank_)) mesh_.along(kDecoder, stage_axes());
}

MicrobatchOptions Engine::microbatch_options(std::optional<int64_t> trained_step) const {
  return {.dtype = to_torch(plan_.precision.param),
          .encoder_dtypes = encoder_dtypes(plan_),
          .device = device_,
          .bidirectional_images = plan_.bidirectional_images,
          .replica = plan_.replica_layout(world_rank_),
          .seed = static_cast<uint64_t>(plan_.options.run.seed),
          .trained_step = trained_step};
}

std::vector<at::ScalarType> encoder_dtypes(const Plan& plan) {
  std::vector<at::ScalarType> dtypes;
  for (const EncoderSpec& encoder : plan.model.encoders)
    dtypes.push_back(to_torch(plan.precision_of(encoder.name).param));
  return dtypes;
}

}  // namespace zea
