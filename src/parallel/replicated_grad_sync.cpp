// SPDX-License-Identifier: Apache-2.0
#include "parallel/replicated_grad_sync.hpp"

#include <utility>

#include "core/error.hpp"

namespace zea {

namespace {

Collectives& group_of(const ReplicatedRanges& held, Mesh& mesh) {
  switch (held.holders.group) {
    case ReplicationKind::Tp:
      return mesh.along(held.module, {Axis::Tp});
    case ReplicationKind::Kv:
      return mesh.kv_holders(held.module);
    case ReplicationKind::Tied:
      return mesh.tied(held.module, held.holders.tied);
  }
  throw InternalError("unknown kind of replication group");
}

}  // namespace

ReplicatedGradSync::ReplicatedGradSync(const Plan& plan, Mesh& mesh,
                                       const std::vector<std::unique_ptr<ShardedBuffer>>& buffers,
                                       at::Device device)
    : buffers_(buffers), dtype_(plan.precision.master), device_(device) {
  for (ReplicatedRanges& held : replicated_ranges(plan, mesh.rank())) {
    Collectives& holders = group_of(held, mesh);
    sums_.push_back({&holders, std::move(held), {}, {}});
  }
}

at::Tensor ReplicatedGradSync::gradient_of(const ReplicatedRange& range) const {
  return buffers_[range.buffer]->gradient().narrow(0, range.begin, range.elements);
}

void ReplicatedGradSync::run(const std::vector<bool>& buffers_with_gradient) {
  // Sums over stages (tied) follow the sums over tp ranks.
  for (const bool is_tied : {false, true}) {
    const auto each = [&](const auto& run) {
      for (Sum& sum : sums_)
        if (sum.held.is_tied() == is_tied) run(sum);
    };
    each([&](Sum& sum) { start(sum, buffers_with_gradient); });
    each([&](Sum& sum) { finish(sum, buffers_with_gradient); });
  }
}

void ReplicatedGradSync::start(Sum& sum, const std::vector<bool>& buffers_with_gradient) {
  const int64_t elements = sum.held.elements(buffers_with_gradient);
  if (elements == 0) return;
  if (sum.held.in_place) {
    const at::Tensor there = gradient_of(sum.held.ranges.front());
    sum.pending = sum.holders->all_reduce(there.data_ptr(), elements, dtype_, ReduceOp::Sum);
    return;
  }
  // The memory estimate includes this temporary buffer (packed_replicated_bytes()).
  sum.packed = at::empty({elements}, at::TensorOptions().dtype(to_torch(dtype_)).device(device_));
  int64_t begin = 0;
  for (const ReplicatedRange& range : sum.held.ranges) {
    if (!buffers_with_gradient[range.buffer]) continue;
    const at::Tensor part = sum.packed.narrow(0, begin, range.elements);
    part.copy_(gradient_of(range));
    if (range.scale != 1) part.mul_(range.scale);
    begin += range.elements;
  }
  sum.pending = sum.holders->all_reduce(sum.packed.data_ptr(), elements, dtype_, ReduceOp::Sum);
}

void ReplicatedGradSync::finish(Sum& sum, const std::vector<bool>& buffers_with_gradient) {
  sum.pending.wait();
  if (!sum.packed.defined()) return;
  int64_t begin = 0;
  for (const ReplicatedRange& range : sum.held.ranges) {
    if (!buffers_with_gradient[range.buffer]) continue;
    gradient_of(range).copy_(sum.packed.narrow(0, begin, range.elements));
    begin += range.elements;
  }
  sum.packed.reset();
}

}  // namespace zea
