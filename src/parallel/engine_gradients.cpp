// SPDX-License-Identifier: Apache-2.0
// The gradients of parameters: opened for a backward, reduced behind it.
#include "zea/parallel/engine.hpp"

#include "zea/core/error.hpp"

namespace zea {

void Engine::open_gradients(int unit) {
  for (int group : unit_groups_[unit]) {
    groups_[group]->wait_unshard();
    if (reducing_shard_ == group) finish_reduce_shard();  // tied parameters: the other unit's share
    if (groups_[group]->trainable()) open_gradient(group);
  }
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

}  // namespace zea
