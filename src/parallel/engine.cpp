// SPDX-License-Identifier: Apache-2.0
// The loop over actions. engine_units has the actions with a unit, engine_values those between
// units, engine_gradients the reductions; engine_parts makes the objects that they use.
#include "parallel/engine.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

/// Neighboring messages between two stage groups are one call.
bool travels_with(const Action& action, const Action& next) {
  return action.group >= 0 && action.kind == next.kind && action.group == next.group;
}

}  // namespace

EngineResult Engine::run(const std::vector<Action>& actions,
                         const std::vector<Microbatch>& microbatches, HeadOutput head,
                         const RouterLossesOfUnits& router_losses) {
  for (const auto& [module, layers] : layers_)
    layers->set_router_losses(router_losses.empty() ? nullptr : &router_losses);
  microbatches_ = &microbatches;
  head_ = head;
  trains_ = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardInput;
  });
  result_ = {};
  result_.outputs.resize(microbatches.size());
  for (size_t i = 0; i < actions.size(); ++i) {
    const ActionRecord::Action recorded(mesh_.record(),
                                        describe(actions[i], plan_.model, plan_.buffers));
    run_action(actions[i]);
    if (i + 1 == actions.size() || !travels_with(actions[i], actions[i + 1])) transfers_.start();
    progress();
  }
  {
    const ActionRecord::Action recorded(mesh_.record(), "finish reductions and transfers");
    finish_reductions();
    transfers_.finish();
  }
  ZEA_ASSERT(deferred_.empty() && arriving_gradients_.empty());
  // Every unit whose graph was kept had its backward.
  ZEA_ASSERT(std::none_of(saved_.begin(), saved_.end(), [](const auto& saved) {
    return saved.second.made.value.requires_grad() || saved.second.made.loss.requires_grad();
  }));
  for (const auto& [key, saved] : saved_)
    if (saved.value.defined()) result_.unread[key] = saved.value;
  saved_.clear();
  received_.clear();
  return std::move(result_);
}

void Engine::run_action(const Action& action) {
  switch (action.kind) {
    case ActionKind::Unshard:
      return buffers_[action.buffer]->start_unshard();
    case ActionKind::UnshardSubgroup:
      return buffers_[action.buffer]->start_unshard_from_subgroup();
    case ActionKind::Reshard:
      return buffers_[action.buffer]->reshard();
    case ActionKind::ReshardSubgroup:
      return buffers_[action.buffer]->reshard_to_subgroup();
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
      arriving_gradients_[{action.unit, action.microbatch}].push_back(
          transfers_.receive(action, (*microbatches_)[action.microbatch]));
      return;
    case ActionKind::ReduceShard:
      return reduce_shard(action.buffer);
    case ActionKind::ReduceReplicas:
      return reduce_replicas(action.buffer);
  }
}

void Engine::progress() {
  for (auto& buffer : buffers_)
    if (buffer) buffer->progress();
  transfers_.progress();
}

void Engine::broadcast_weights() {
  for (auto& buffer : buffers_)
    if (buffer) buffer->broadcast_master();
}

}  // namespace zea
