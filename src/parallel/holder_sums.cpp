// SPDX-License-Identifier: Apache-2.0
#include "zea/parallel/holder_sums.hpp"

#include "zea/core/error.hpp"

namespace zea {

HolderSums::HolderSums(const Plan& plan, Mesh& mesh,
                       const std::vector<std::unique_ptr<ShardedBuffer>>& buffers,
                       at::Device device)
    : buffers_(buffers), dtype_(plan.precision.master), device_(device) {
  // In one order on all ranks, whatever their shards hold.
  for (const ModuleGrid& grid : plan.mesh.modules) {
    if (!plan.mesh.has(mesh.rank(), grid.module)) continue;
    if (grid.tp > 1) sum_over(mesh.along(grid.module, {Axis::Tp}));
    if (grid.kv_holders > 1) sum_over(mesh.kv_holders(grid.module));
  }
  for (size_t g = 0; g < buffers.size(); ++g)
    if (buffers[g] && buffers[g]->trainable()) add_buffer(plan, static_cast<int>(g), mesh);
}

void HolderSums::add_buffer(const Plan& plan, int buffer, Mesh& mesh) {
  const std::string& module = plan.buffers[buffer].module;
  const bool sequence_parallel = plan.token_shardings.at(module).sequence_parallel;
  const FlatRange range = buffers_[buffer]->range();
  if (plan.stages_of_buffer(buffer).size() > 1)
    add_range(sum_over(mesh.tied(module)), {buffer, 0, range.end - range.begin, 1});
  for (const FlatPart& part : parts_in_range(plan.buffers[buffer], range)) {
    const ParamCut& cut = plan.cuts[part.param];
    if (cut.holders == 1) continue;
    Collectives& holders = cut.dim < 0 ? mesh.along(module, {Axis::Tp}) : mesh.kv_holders(module);
    ZEA_ASSERT(holders.size() == cut.holders);
    add_range(sum_over(holders), {buffer, part.flat_begin - range.begin, part.elements,
                                  holder_scale(cut, sequence_parallel)});
  }
}

HolderSums::Sum& HolderSums::sum_over(Collectives& holders) {
  for (Sum& sum : sums_)
    if (sum.holders == &holders) return sum;
  sums_.push_back({&holders, {}, {}, {}});
  return sums_.back();
}

void HolderSums::add_range(Sum& sum, const Range& range) {
  Range* last = sum.ranges.empty() ? nullptr : &sum.ranges.back();
  if (last && last->buffer == range.buffer && last->scale == range.scale &&
      last->begin + last->elements == range.begin)
    last->elements += range.elements;
  else
    sum.ranges.push_back(range);
}

at::Tensor HolderSums::gradient_of(const Range& range) const {
  return buffers_[range.buffer]->gradient().narrow(0, range.begin, range.elements);
}

void HolderSums::run(const std::vector<bool>& buffers_with_gradient) {
  for (Sum& sum : sums_) start(sum, buffers_with_gradient);
  for (Sum& sum : sums_) finish(sum, buffers_with_gradient);
}

void HolderSums::start(Sum& sum, const std::vector<bool>& buffers_with_gradient) {
  int64_t elements = 0;
  for (const Range& range : sum.ranges)
    if (buffers_with_gradient[range.buffer]) elements += range.elements;
  if (elements == 0) return;
  // Memory for the moment: what a step needs most of has been given back by now.
  sum.packed = at::empty({elements}, at::TensorOptions().dtype(to_torch(dtype_)).device(device_));
  int64_t begin = 0;
  for (const Range& range : sum.ranges) {
    if (!buffers_with_gradient[range.buffer]) continue;
    const at::Tensor part = sum.packed.narrow(0, begin, range.elements);
    part.copy_(gradient_of(range));
    if (range.scale != 1) part.mul_(range.scale);
    begin += range.elements;
  }
  sum.pending = sum.holders->all_reduce(sum.packed.data_ptr(), elements, dtype_, ReduceOp::Sum);
}

void HolderSums::finish(Sum& sum, const std::vector<bool>& buffers_with_gradient) {
  if (!sum.packed.defined()) return;
  sum.pending.wait();
  int64_t begin = 0;
  for (const Range& range : sum.ranges) {
    if (!buffers_with_gradient[range.buffer]) continue;
    gradient_of(range).copy_(sum.packed.narrow(0, begin, range.elements));
    begin += range.elements;
  }
  sum.packed.reset();
}

}  // namespace zea
