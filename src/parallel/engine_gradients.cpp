// SPDX-License-Identifier: Apache-2.0
// The gradients of parameters: opened before a backward, reduced after it.
#include <utility>

#include "core/error.hpp"
#include "parallel/engine.hpp"

namespace zea {

void Engine::open_gradients(int unit) {
  for (int buffer : unit_buffers_[unit]) {
    buffers_[buffer]->wait_unshard();
    if (reducing_shard_ == buffer)
      finish_reduce_shard();  // tied parameters: the other unit's share
    if (buffers_[buffer]->trainable()) open_gradient(buffer);
  }
}

/// The slot may still hold a gradient whose reduction is in flight: in a step in which some units
/// have no work, fewer units lie between them than the plan of slots assumes.
void Engine::open_gradient(int buffer) {
  if (plan_.shardings[buffer].gathered()) {
    const int holder = gradient_slots_->holder(buffer);
    if (holder >= 0 && holder != buffer) {
      ZEA_ASSERT(reducing_shard_ == holder);
      finish_reduce_shard();
    }
  }
  buffers_[buffer]->open_gradient();
}

void Engine::read_gradient(int buffer) {
  if (read_gradient_) read_gradient_(buffer, buffers_[buffer]->summand());
}

void Engine::reduce_shard(int buffer) {
  // Only one reduction is in flight: with the gradient that the next backward fills, two unsharded
  // gradients exist.
  finish_reduce_shard();
  read_gradient(buffer);
  reducing_shard_ = buffer;
  buffers_[buffer]->start_reduce_shard();
}

void Engine::finish_reduce_shard() {
  if (!reducing_shard_) return;
  const int buffer = *std::exchange(reducing_shard_, std::nullopt);
  buffers_[buffer]->finish_reduce_shard();
  if (std::exchange(then_reduces_replicas_, false)) reduce_replicas(buffer);
}

/// Where the gradient is still on its way to its shards, the sum over replicas starts when that is
/// finished: behind the next backward, not in front of it. These sums start in the order of their
/// actions, which is the same on all replicas; what else there is between them is not.
void Engine::reduce_replicas(int buffer) {
  if (then_reduces_replicas_) finish_reduce_shard();
  if (reducing_shard_ == buffer) {
    then_reduces_replicas_ = true;
    return;
  }
  if (!plan_.shardings[buffer].gathered()) read_gradient(buffer);
  buffers_[buffer]->start_reduce_replicas();
  reducing_replicas_.push_back(buffer);
}

void Engine::finish_reductions() {
  finish_reduce_shard();
  for (int buffer : reducing_replicas_) buffers_[buffer]->finish_reduce_replicas();
  reducing_replicas_.clear();
  if (trains_)
    for (const auto& buffer : buffers_)
      if (buffer && buffer->trainable() && !plan_.shardings[buffer->index()].gathered() &&
          plan_.shardings[buffer->index()].replicas == 1)
        read_gradient(buffer->index());
  ShardedBuffer::finish_gradients(buffers_);
}

}  // namespace zea
