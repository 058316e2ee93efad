// SPDX-License-Identifier: Apache-2.0
#include "parallel/sharded_buffer.hpp"

#include <map>
#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

using Tensors = std::vector<at::Tensor>;
/// Tensors of one take a launch together.
using TensorKind = std::pair<at::DeviceType, at::ScalarType>;

TensorKind kind_of(const at::Tensor& tensor) {
  return {tensor.device().type(), tensor.scalar_type()};
}

/// Zeroes the tensors of each type and device in one launch.
void zero(const Tensors& tensors) {
  std::map<TensorKind, Tensors> kinds;
  for (const at::Tensor& tensor : tensors) kinds[kind_of(tensor)].push_back(tensor);
  for (const auto& [kind, same] : kinds) at::_foreach_zero_(same);
}

}  // namespace

ShardedBuffer::ShardedBuffer(const Plan& plan, int index, int world_rank,
                             const ShardedBufferContext& context,
                             const std::vector<bool>& linear_weights)
    : layout_(plan.buffers[index]),
      index_(index),
      context_(context),
      shards_(plan.shardings[index].shards),
      offloads_(plan.shardings[index].offloads),
      pins_memory_(plan.shardings[index].pins_memory),
      precision_(plan.precision_of(layout_.module)),
      owned_type_(plan.owned_type(index)),
      range_(shard_range(layout_, plan.shard_of(world_rank, index), shards_)) {
  counts_.assign(shards_, range_.end - range_.begin);
  if (const int subgroup = plan.shardings[index].subgroup)
    subgroup_counts_.assign(subgroup, layout_.padded(shards_) / subgroup);
  build_owned();
  build_runs(plan, linear_weights);
  publish();
}

// The shard that is gathered and the gradient that is summed over replicas lie in memory that peers
// reach. An offloaded one passes through the device on its way.
void ShardedBuffer::build_owned() {
  const at::ScalarType master = to_torch(precision_.master), param = to_torch(precision_.param);
  const int64_t elements = range_.end - range_.begin;
  const bool is_read = layout_.is_computed_with();
  const bool publishes = precision_.param != owned_type_ && is_read;
  Collectives* gather = is_read && !offloads_ ? context_.shard_group : nullptr;
  master_ = owned(elements, to_torch(owned_type_), publishes ? nullptr : gather);
  if (publishes) published_ = owned(elements, param, gather);
  if (!subgroup_counts_.empty() && is_read)
    between_ = on_device(subgroup_counts_[0], param, context_.shard_subgroup);
  if (!layout_.trainable) return;
  gradient_ = owned(elements, master, travels_as_is() ? context_.replicas : nullptr);
  if (context_.replicas && !travels_as_is())
    own_wire_ = on_device(elements, to_torch(precision_.reduce), context_.replicas);
}

Buffer ShardedBuffer::owned(int64_t elements, at::ScalarType type, Collectives* reach) {
  if (!offloads_) {
    Buffer buffer = on_device(elements, type, reach);
    buffer.tensor().zero_();
    return buffer;
  }
  const auto options = at::TensorOptions().dtype(type).pinned_memory(pins_memory_);
  return {context_.ledger, at::zeros({elements}, options)};
}

Buffer ShardedBuffer::on_device(int64_t elements, at::ScalarType type, Collectives* reach) {
  return allocate_buffer(context_.ledger, reach, elements, type, context_.device);
}

void ShardedBuffer::build_runs(const Plan& plan, const std::vector<bool>& linear_weights) {
  int before = -1;
  for (const FlatParam& member : layout_.params) {
    const ParamSpec& spec = plan.model.params[member.param];
    const Shape& piece = plan.cuts[member.param].shape;
    if (before >= 0 && is_fused_with(plan.model, before, member.param)) {
      FusedRun& run = runs_.back();
      std::vector<int64_t> shape = run.parameter->shape();
      shape[0] += piece[0];
      run.parameter = std::make_unique<Parameter>(run.parameter->name() + "+" + spec.name, shape,
                                                  layout_.trainable, context_.device);
      run.elements += member.elements;
      run_of_param_.push_back(-1);
    } else {
      run_of_param_.push_back(static_cast<int>(runs_.size()));
      runs_.push_back(
          {member.offset, member.elements,
           std::make_unique<Parameter>(spec.name, piece, layout_.trainable, context_.device),
           linear_weights[member.param]});
    }
    before = member.param;
  }
}

Parameter* ShardedBuffer::parameter(int param) const {
  for (size_t i = 0; i < layout_.params.size(); ++i)
    if (layout_.params[i].param == param && run_of_param_[i] >= 0)
      return runs_[run_of_param_[i]].parameter.get();
  return nullptr;
}

void ShardedBuffer::broadcast_master() {
  if (context_.replicas) {
    const at::Tensor sent = master_.tensor().to(context_.device);
    context_.replicas->broadcast(sent.data_ptr(), sent.numel(), owned_type_, 0).wait();
    if (offloads_) master_.tensor().copy_(sent);
  }
  publish();
}

void ShardedBuffer::publish() {
  if (published_.defined()) published_.tensor().copy_(master_.tensor());
  if (!gathers()) set_values(published_.defined() ? published_.tensor() : master_.tensor());
}

// Units keep the same views of a buffer that is not gathered.
void ShardedBuffer::publish_all(const All& buffers) {
  std::map<TensorKind, std::pair<Tensors, Tensors>> copied;
  for (const auto& buffer : buffers) {
    if (!buffer || !buffer->trainable() || !buffer->published_.defined()) continue;
    auto& [targets, sources] = copied[kind_of(buffer->published_.tensor())];
    targets.push_back(buffer->published_.tensor());
    sources.push_back(buffer->master());
  }
  for (const auto& [kind, tensors] : copied) at::_foreach_copy_(tensors.first, tensors.second);
}

void ShardedBuffer::zero_gradients(const All& buffers) {
  Tensors zeroed;
  for (const auto& buffer : buffers) {
    if (!buffer) continue;
    buffer->finish_gradient();
    buffer->gradient_is_zero_ = true;
    if (!buffer->trainable()) continue;
    if (buffer->gathers())
      zeroed.push_back(buffer->gradient());
    else
      buffer->renew_gradients(buffer->gradient(), zeroed);
  }
  zero(zeroed);
}

void ShardedBuffer::finish_gradients(const All& buffers) {
  Tensors zeroed;
  for (const auto& buffer : buffers) {
    if (!buffer) continue;
    buffer->finish_gradient();
    if (buffer->trainable() && !buffer->gathers())
      buffer->take_unwritten(buffer->gradient(), zeroed);
  }
  zero(zeroed);
}

void ShardedBuffer::renew_gradients(const at::Tensor& flat, Tensors& zeroed) {
  int64_t end = 0;
  const auto zero_until = [&](int64_t begin) {
    if (begin > end) zeroed.push_back(flat.narrow(0, end, begin - end));
  };
  for (const FusedRun& run : runs_) {
    if (!run.is_overwritten) continue;
    run.parameter->renew_gradient();
    zero_until(run.offset);
    end = run.offset + run.elements;
  }
  zero_until(flat.numel());
}

void ShardedBuffer::take_unwritten(const at::Tensor& flat, Tensors& zeroed) {
  for (const FusedRun& run : runs_)
    if (run.parameter->takes_new_gradient())
      zeroed.push_back(flat.narrow(0, run.offset, run.elements));
}

void ShardedBuffer::zero_unwritten(const at::Tensor& flat) {
  Tensors zeroed;
  take_unwritten(flat, zeroed);
  zero(zeroed);
}

void ShardedBuffer::set_values(const at::Tensor& flat) {
  for (FusedRun& run : runs_)
    run.parameter->set_value(
        flat.defined() ? flat.narrow(0, run.offset, run.elements).view(run.parameter->shape())
                       : at::Tensor());
}

void ShardedBuffer::set_gradients(const at::Tensor& flat) {
  for (FusedRun& run : runs_)
    run.parameter->set_gradient(
        flat.defined() ? flat.narrow(0, run.offset, run.elements).view(run.parameter->shape())
                       : at::Tensor());
}

void ShardedBuffer::gather(Collectives* from, const at::Tensor& own, const Counts& counts) {
  ZEA_ASSERT(gathers() && !gathered_.defined());
  gathered_ = context_.gathered.take(index_, layout_.padded(shards_), own.scalar_type());
  // Its memory belongs to the computing stream, which waits for the gathering before it is freed.
  const bool is_there = own.device().type() == context_.device.type();
  if (from) sent_ = is_there ? own : at::empty(own.sizes(), own.options().device(context_.device));
  const auto start = [&] {
    at::Tensor& there = from ? sent_ : gathered_;
    if (!there.is_same(own)) there.copy_(own, pins_memory_);
    if (!from) return;
    unsharding_ =
        from->all_gather(sent_.data_ptr(), gathered_.data_ptr(), counts, precision_.param);
  };
  if (!is_there && context_.copies)
    fetched_ = launch_beside(context_.copies->to_device, start);
  else
    start();
}

void ShardedBuffer::finish_gather() {
  if (fetched_) fetched_->block(current_stream(context_.device));
  fetched_.reset();
  unsharding_.wait();
  sent_.reset();
}

void ShardedBuffer::start_unshard() {
  gather(context_.shard_group, published_.defined() ? published_.tensor() : master_.tensor(),
         counts_);
}

void ShardedBuffer::start_unshard_from_subgroup() {
  gather(context_.shard_subgroup, between_.tensor(), subgroup_counts_);
}

void ShardedBuffer::wait_unshard() {
  if (!gathers()) return;
  ZEA_ASSERT(gathered_.defined());
  finish_gather();
  set_values(gathered_);
}

void ShardedBuffer::reshard() {
  ZEA_ASSERT(gathers() && gathered_.defined());
  finish_gather();
  set_values({});
  gathered_.reset();
  context_.gathered.give_back(index_);
}

void ShardedBuffer::reshard_to_subgroup() {
  finish_gather();
  const int64_t elements = subgroup_counts_[0];
  between_.tensor().copy_(
      gathered_.narrow(0, context_.shard_subgroup->rank() * elements, elements));
  reshard();
}

void ShardedBuffer::open_gradient() {
  if (!gathers()) {
    set_gradients(gradient_.tensor());
    return;
  }
  if (open_gradient_.defined()) return;
  open_gradient_ =
      context_.gradients.take(index_, layout_.padded(shards_), to_torch(precision_.master));
  set_gradients(open_gradient_);
  Tensors zeroed;
  renew_gradients(open_gradient_, zeroed);
  zero(zeroed);
}

const at::Tensor& ShardedBuffer::summand() {
  if (gathers())
    open_gradient();  // a rank without work here contributes zeros
  else
    finish_gradient();
  const at::Tensor& own = gathers() ? open_gradient_ : gradient();
  zero_unwritten(own);
  return own;
}

void ShardedBuffer::start_reduce_shard() {
  summand();
  set_gradients({});
  if (context_.shard_group == nullptr) return;
  at::Tensor sent = open_gradient_;
  if (!reduces_in_master_type()) {
    wire_ = context_.wire.take(index_, sent.numel(), to_torch(precision_.reduce));
    sent = wire_.copy_(sent);
  }
  const bool straight = gradient_is_zero_ && travels_as_is();
  if (!straight) received_ = on_device(counts_[0], sent.scalar_type(), nullptr);
  void* target = straight ? gradient_.tensor().data_ptr() : received_.tensor().data_ptr();
  reducing_ =
      context_.reducing_group->reduce_scatter(sent.data_ptr(), target, counts_, precision_.reduce);
}

void ShardedBuffer::finish_reduce_shard() {
  reducing_.wait();
  const at::Tensor own = context_.shard_group ? received_.tensor() : open_gradient_;
  if (own.defined()) add_to_gradient(own);
  received_.release();
  gradient_is_zero_ = false;
  if (wire_.defined()) context_.wire.give_back(index_);
  wire_.reset();
  open_gradient_.reset();
  context_.gradients.give_back(index_, gradient_copied_);
}

void ShardedBuffer::add_to_gradient(const at::Tensor& own) {
  if (context_.copies && gradient_is_zero_) return copy_to_gradient(own);
  finish_gradient();
  gradient_.tensor().add_(own.to(gradient_.tensor().device()));
}

void ShardedBuffer::copy_to_gradient(const at::Tensor& from) {
  const at::Tensor& gradient = gradient_.tensor();
  const auto copy = [&] { gradient.copy_(from.to(gradient.scalar_type()), pins_memory_); };
  if (!context_.copies) return copy();
  gradient_copied_ = std::make_shared<c10::Event>(launch_beside(context_.copies->to_host, copy));
  from.record_stream(context_.copies->to_host);
}

void ShardedBuffer::finish_gradient() {
  if (gradient_copied_) gradient_copied_->synchronize();
  gradient_copied_.reset();
}

void ShardedBuffer::start_reduce_replicas() {
  if (gathers())
    finish_gradient();
  else
    summand();
  const at::Tensor& sent =
      own_wire_.defined() ? own_wire_.tensor().copy_(gradient_.tensor()) : gradient_.tensor();
  replicating_ = context_.replicas->all_reduce(sent.data_ptr(), sent.numel(), precision_.reduce,
                                               ReduceOp::Sum);
}

void ShardedBuffer::finish_reduce_replicas() {
  replicating_.wait();
  if (own_wire_.defined()) copy_to_gradient(own_wire_.tensor());
}

void ShardedBuffer::progress() {
  unsharding_.test();
  reducing_.test();
  replicating_.test();
}

}  // namespace zea
