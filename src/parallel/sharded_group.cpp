// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/sharded_group.hpp"

#include "zea/core/error.hpp"

namespace zea {

at::ScalarType to_torch(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return at::kDouble;
    case DType::Float32:
      return at::kFloat;
    case DType::BFloat16:
      return at::kBFloat16;
    case DType::Float16:
      return at::kHalf;
    case DType::Int64:
      return at::kLong;
    case DType::Int32:
      return at::kInt;
    case DType::UInt8:
      return at::kByte;
  }
  throw InternalError("unknown dtype");
}

ShardedGroup::ShardedGroup(const Plan& plan, int group, int world_rank,
                           const ShardedGroupContext& context)
    : layout_(plan.groups[group]),
      context_(context),
      shards_(plan.shardings[group].shards),
      param_type_(to_torch(plan.precision.param)),
      master_type_(to_torch(plan.precision.master)),
      param_dtype_(plan.precision.param),
      master_dtype_(plan.precision.master),
      range_(shard_range(layout_, plan.shard_of(world_rank, group), shards_)) {
  const int64_t own = range_.end - range_.begin;
  counts_.assign(shards_, own);
  const auto owned = [&](at::ScalarType type) {
    Buffer buffer(context_.ledger, own, type, context_.device);
    buffer.tensor().zero_();
    return buffer;
  };
  master_ = owned(master_type_);
  if (layout_.trainable) {
    exp_avg_ = owned(master_type_);
    exp_avg_sq_ = owned(master_type_);
    gradient_ = owned(master_type_);
  }
  if (param_type_ != master_type_ && !layout_.units.empty()) published_ = owned(param_type_);
  build_runs(plan.model);
  publish();
}

void ShardedGroup::build_runs(const ModelSpec& model) {
  bool joined = false;
  for (const FlatParam& member : layout_.params) {
    const ParamSpec& spec = model.params[member.param];
    if (joined) {
      FusedRun& run = runs_.back();
      std::vector<int64_t> shape = run.parameter->shape();
      shape[0] += spec.shape[0];
      run.parameter = std::make_unique<Parameter>(run.parameter->name() + "+" + spec.name, shape,
                                                  layout_.trainable, context_.device);
      run.elements += member.elements;
      run_of_param_.push_back(-1);
    } else {
      run_of_param_.push_back(static_cast<int>(runs_.size()));
      runs_.push_back(
          {member.offset, member.elements,
           std::make_unique<Parameter>(spec.name, spec.shape, layout_.trainable, context_.device)});
    }
    joined = spec.fused_with_next;
  }
}

Parameter* ShardedGroup::parameter(int param) const {
  for (size_t i = 0; i < layout_.params.size(); ++i)
    if (layout_.params[i].param == param && run_of_param_[i] >= 0)
      return runs_[run_of_param_[i]].parameter.get();
  return nullptr;
}

void ShardedGroup::publish() {
  if (published_.defined()) published_.tensor().copy_(master_.tensor());
  if (!gathers()) set_values(published_.defined() ? published_.tensor() : master_.tensor());
}

void ShardedGroup::zero_gradient() {
  if (layout_.trainable) gradient_.tensor().zero_();
}

void ShardedGroup::set_values(const at::Tensor& flat) {
  for (FusedRun& run : runs_)
    run.parameter->set_value(
        flat.defined() ? flat.narrow(0, run.offset, run.elements).view(run.parameter->shape())
                       : at::Tensor());
}

void ShardedGroup::set_gradients(const at::Tensor& flat) {
  for (FusedRun& run : runs_)
    run.parameter->set_gradient(
        flat.defined() ? flat.narrow(0, run.offset, run.elements).view(run.parameter->shape())
                       : at::Tensor());
}

void ShardedGroup::start_unshard() {
  ZEA_ASSERT(gathers() && !gathered_.defined());
  gathered_ = context_.gathered.acquire(layout_.padded(shards_));
  const at::Tensor& own = published_.defined() ? published_.tensor() : master_.tensor();
  unsharding_ = context_.shard_group->all_gather(own.data_ptr(), gathered_.tensor().data_ptr(),
                                                 counts_, param_dtype_);
}

void ShardedGroup::wait_unshard() {
  if (!gathers()) return;
  ZEA_ASSERT(gathered_.defined());
  unsharding_.wait();
  set_values(gathered_.tensor());
}

void ShardedGroup::reshard() {
  ZEA_ASSERT(gathers() && gathered_.defined());
  unsharding_.wait();
  set_values({});
  context_.gathered.give_back(std::move(gathered_));
}

void ShardedGroup::open_gradient() {
  if (open_gradient_.defined()) return;
  if (!gathers()) {
    set_gradients(gradient_.tensor());
    return;
  }
  open_gradient_ = context_.gradients.acquire(layout_.padded(shards_));
  open_gradient_.tensor().zero_();
  set_gradients(open_gradient_.tensor());
}

void ShardedGroup::start_reduce_shard() {
  open_gradient();  // a rank without work here contributes zeros
  set_gradients({});
  received_ = Buffer(context_.ledger, counts_[0], master_type_, context_.device);
  reducing_ = context_.shard_group->reduce_scatter(
      open_gradient_.tensor().data_ptr(), received_.tensor().data_ptr(), counts_, master_dtype_);
}

void ShardedGroup::finish_reduce_shard() {
  reducing_.wait();
  gradient_.tensor().add_(received_.tensor());
  received_.release();
  context_.gradients.give_back(std::move(open_gradient_));
}

void ShardedGroup::start_reduce_replicas() {
  replicating_ = context_.replicas->all_reduce(
      gradient_.tensor().data_ptr(), gradient_.tensor().numel(), master_dtype_, ReduceOp::Sum);
}

void ShardedGroup::finish_reduce_replicas() {
  replicating_.wait();
}

void ShardedGroup::progress() {
  unsharding_.test();
  reducing_.test();
  replicating_.test();
}

}  // namespace zea
