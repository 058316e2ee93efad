// SPDX-License-Identifier: Apache-2.0
#include "model/stacked_slices.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// x (tokens, ...) at `indices` -> (size, tokens / size, ...).
Tensor pick(const Tensor& x, const Tensor& indices, int64_t size) {
  return x.index_select(0, indices).unflatten(0, {size, -1});
}

}  // namespace

StackedSlices::StackedSlices(const SliceStack& stack, int64_t heads, int64_t kv_heads)
    : stack_(stack),
      size_(std::ssize(stack.slices)),
      kv_heads_(kv_heads),
      group_(heads / kv_heads) {}

FlashInputs StackedSlices::gather(const AttentionInputs& in) const {
  FlashInputs flash{
      gather_queries(in.q), gather_keys(in.k), gather_keys(in.v), is_masked(), {}, in.scores};
  if (stack_.padding.defined()) flash.mask = make_mask(flash.q);
  return flash;
}

Tensor StackedSlices::gather_queries(const Tensor& x) const {
  const AttentionSlice& first = stack_.slices.front();
  return fold_queries(is_view() ? x.narrow(0, first.query, first.queries).unsqueeze(0)
                                : pick(x, stack_.query_rows, size_));
}

Tensor StackedSlices::gather_queries(const Tensor& x, double filler) const {
  if (!stack_.real.defined()) return gather_queries(x);
  Tensor all =
      at::full({size_ * stack_.queries, x.size(1), x.size(2)}, at::Scalar(filler), x.options());
  all.index_copy_(0, stack_.real, x.index_select(0, stack_.real_rows));
  return fold_queries(all.unflatten(0, {size_, -1}));
}

Tensor StackedSlices::gather_keys(const Tensor& x) const {
  const AttentionSlice& first = stack_.slices.front();
  return fold_keys(is_view() ? x.narrow(0, first.key, first.keys).unsqueeze(0)
                             : pick(x, stack_.key_rows, size_));
}

AttentionPart StackedSlices::part_of(const FlashOutputs& outputs) const {
  return {split_queries(outputs.out), split_queries(outputs.lse.unsqueeze(-1)).squeeze(-1),
          stack_.real, stack_.real_rows, stack_.slices.front().query};
}

void StackedSlices::add_queries(const Tensor& x, const Tensor& gradient) const {
  const AttentionSlice& first = stack_.slices.front();
  const Tensor values = unfold_queries(gradient).flatten(0, 1);
  if (is_view())
    x.narrow(0, first.query, first.queries).add_(values);
  else
    x.index_add_(0, stack_.query_rows, values.to(x.scalar_type()));
}

void StackedSlices::add_keys(const Tensor& x, const Tensor& gradient) const {
  const AttentionSlice& first = stack_.slices.front();
  const Tensor values = unfold_keys(gradient).flatten(0, 1);
  if (is_view())
    x.narrow(0, first.key, first.keys).add_(values);
  else
    x.index_add_(0, stack_.key_rows, values.to(x.scalar_type()));
}

/// (size, queries, heads, dim) -> (size, heads, queries, dim); with G query heads on a KV head
/// (size, kv_heads, queries * G, dim), masked (size * kv_heads, G, queries, dim).
Tensor StackedSlices::fold_queries(const Tensor& x) const {
  if (group_ == 1) return x.transpose(1, 2);
  const Tensor groups = x.unflatten(2, {kv_heads_, group_});
  if (is_masked()) return groups.permute({0, 2, 3, 1, 4}).flatten(0, 1);
  return groups.permute({0, 2, 1, 3, 4}).flatten(2, 3);
}

/// A kernel's queries as a view (size, queries, kv_heads, G, dim).
Tensor StackedSlices::split_queries(const Tensor& x) const {
  if (group_ == 1) return x.transpose(1, 2).unsqueeze(3);
  if (is_masked()) return x.unflatten(0, {size_, kv_heads_}).permute({0, 3, 1, 2, 4});
  return x.unflatten(2, {stack_.queries, group_}).permute({0, 2, 1, 3, 4});
}

/// (size, queries, heads, dim).
Tensor StackedSlices::unfold_queries(const Tensor& x) const {
  return split_queries(x).flatten(2, 3);
}

/// (size, keys, kv_heads, dim) -> (size, kv_heads, keys, dim), masked with G query heads on a KV
/// head (size * kv_heads, G, keys, dim) without copies of a head.
Tensor StackedSlices::fold_keys(const Tensor& x) const {
  const Tensor keys = x.transpose(1, 2);
  if (group_ == 1 || !is_masked()) return keys;
  return keys.flatten(0, 1).unsqueeze(1).expand({-1, group_, -1, -1});
}

Tensor StackedSlices::unfold_keys(const Tensor& x) const {
  if (group_ == 1 || !is_masked()) return x.transpose(1, 2);
  return x.sum(1).unflatten(0, {size_, kv_heads_}).transpose(1, 2);
}

/// (size, heads, queries, keys).
Tensor StackedSlices::make_mask(const Tensor& like) const {
  return stack_.padding.to(like.scalar_type())
      .narrow(3, 0, stack_.keys)
      .expand({like.size(0), like.size(1), like.size(2), stack_.keys});
}

}  // namespace zea::detail
