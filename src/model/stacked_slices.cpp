// SPDX-License-Identifier: Apache-2.0
#include "stacked_slices.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "zea/model/index_tensor.hpp"

namespace zea::detail {
namespace {

using at::Tensor;
using Ids = std::vector<int64_t>;

/// Longer slices are worth a call each.
constexpr int64_t kLongestStacked = 64;
/// Lengths are padded to multiples of this.
constexpr int64_t kPaddedTo = 32;
/// Queries, or keys, of a stack: copies of more than these gain nothing.
constexpr int64_t kMostRows = 2048;

int64_t padded(int64_t length) {
  return (length + kPaddedTo - 1) / kPaddedTo * kPaddedTo;
}

bool takes(const SliceStack& stack, const AttentionSlice& slice) {
  const AttentionSlice& last = stack.slices.back();
  const auto size = static_cast<int64_t>(stack.slices.size()) + 1;
  return last.query + last.queries <= slice.query &&
         size * std::max(stack.queries, stack.keys) <= kMostRows;
}

/// x (tokens, ...) at `indices` -> (size, tokens / size, ...).
Tensor pick(const Tensor& x, const Tensor& indices, int64_t size) {
  return x.index_select(0, indices).unflatten(0, {size, -1});
}

}  // namespace

std::vector<SliceStack> stack_slices(const std::vector<AttentionSlice>& slices) {
  std::vector<AttentionSlice> order = slices;
  std::stable_sort(
      order.begin(), order.end(),
      [](const AttentionSlice& a, const AttentionSlice& b) { return a.query < b.query; });
  std::vector<SliceStack> stacks;
  std::map<std::tuple<int64_t, int64_t, SliceMask>, std::vector<size_t>> of_shape;
  for (const AttentionSlice& slice : order) {
    const bool is_long = std::max(slice.queries, slice.keys) > kLongestStacked;
    const int64_t queries = is_long ? slice.queries : padded(slice.queries);
    const int64_t keys = is_long ? slice.keys : padded(slice.keys);
    auto& same = of_shape[{queries, keys, slice.mask}];
    const auto found = std::find_if(same.begin(), same.end(), [&](size_t index) {
      return !is_long && takes(stacks[index], slice);
    });
    if (found != same.end()) {
      stacks[*found].slices.push_back(slice);
      continue;
    }
    if (!is_long) same.push_back(stacks.size());
    stacks.push_back({{slice}, queries, keys, slice.mask});
  }
  for (SliceStack& stack : stacks) {
    // As small as the largest of them: alone, a slice needs no padding.
    stack.queries = stack.keys = 0;
    for (const AttentionSlice& slice : stack.slices) {
      stack.queries = std::max(stack.queries, slice.queries);
      stack.keys = std::max(stack.keys, slice.keys);
    }
  }
  return stacks;
}

StackedSlices::StackedSlices(const SliceStack& stack, int64_t heads, int64_t kv_heads,
                             at::Device device)
    : stack_(stack),
      size_(static_cast<int64_t>(stack.slices.size())),
      kv_heads_(kv_heads),
      group_(heads / kv_heads) {
  const bool reverses = stack.mask == SliceMask::AntiCausal;
  if (size_ == 1 && !reverses) return;
  const auto row = [&](int64_t first, int64_t count, int64_t i) {
    return i >= count ? first : reverses ? first + count - 1 - i : first + i;
  };
  Ids queries, keys, real, rows;
  for (const AttentionSlice& slice : stack.slices) {
    for (int64_t i = 0; i < stack.queries; ++i) {
      if (i < slice.queries) {
        real.push_back(static_cast<int64_t>(queries.size()));
        rows.push_back(row(slice.query, slice.queries, i));
      }
      queries.push_back(row(slice.query, slice.queries, i));
    }
    for (int64_t i = 0; i < stack.keys; ++i) keys.push_back(row(slice.key, slice.keys, i));
    masks_ = masks_ || (!is_masked() && slice.keys < stack.keys);
  }
  query_indices_ = index_tensor(queries, device);
  key_indices_ = index_tensor(keys, device);
  const bool has_padding = rows.size() < queries.size();
  query_rows_ = has_padding ? index_tensor(rows, device) : query_indices_;
  if (has_padding) real_indices_ = index_tensor(real, device);
}

FlashInputs StackedSlices::gather(const AttentionInputs& in) const {
  FlashInputs flash{
      gather_queries(in.q), gather_keys(in.k), gather_keys(in.v), is_masked(), {}, in.scores};
  if (masks_) flash.mask = make_mask(flash.q);
  return flash;
}

Tensor StackedSlices::gather_queries(const Tensor& x) const {
  const AttentionSlice& first = stack_.slices.front();
  return fold_queries(is_view() ? x.narrow(0, first.query, first.queries).unsqueeze(0)
                                : pick(x, query_indices_, size_));
}

Tensor StackedSlices::gather_queries(const Tensor& x, double filler) const {
  if (!real_indices_.defined()) return gather_queries(x);
  Tensor all =
      at::full({size_ * stack_.queries, x.size(1), x.size(2)}, at::Scalar(filler), x.options());
  all.index_copy_(0, real_indices_, x.index_select(0, query_rows_));
  return fold_queries(all.unflatten(0, {size_, -1}));
}

Tensor StackedSlices::gather_keys(const Tensor& x) const {
  const AttentionSlice& first = stack_.slices.front();
  return fold_keys(is_view() ? x.narrow(0, first.key, first.keys).unsqueeze(0)
                             : pick(x, key_indices_, size_));
}

Tensor StackedSlices::real_queries(const Tensor& x) const {
  const Tensor all = unfold_queries(x).flatten(0, 1);
  return real_indices_.defined() ? all.index_select(0, real_indices_) : all;
}

Tensor StackedSlices::take_queries(const Tensor& x) const {
  const AttentionSlice& first = stack_.slices.front();
  return is_view() ? x.narrow(0, first.query, first.queries) : x.index_select(0, query_rows_);
}

void StackedSlices::put_queries(const Tensor& values, const Tensor& x) const {
  if (!is_view()) x.index_copy_(0, query_rows_, values);
}

void StackedSlices::add_queries(const Tensor& x, const Tensor& gradient) const {
  const AttentionSlice& first = stack_.slices.front();
  const Tensor values = unfold_queries(gradient).flatten(0, 1);
  if (is_view())
    x.narrow(0, first.query, first.queries).add_(values);
  else
    x.index_add_(0, query_indices_, values.to(x.scalar_type()));
}

void StackedSlices::add_keys(const Tensor& x, const Tensor& gradient) const {
  const AttentionSlice& first = stack_.slices.front();
  const Tensor values = unfold_keys(gradient).flatten(0, 1);
  if (is_view())
    x.narrow(0, first.key, first.keys).add_(values);
  else
    x.index_add_(0, key_indices_, values.to(x.scalar_type()));
}

/// (size, queries, heads, dim) -> (size, heads, queries, dim); with G query heads on a KV head
/// (size, kv_heads, queries * G, dim), masked (size * kv_heads, G, queries, dim).
Tensor StackedSlices::fold_queries(const Tensor& x) const {
  if (group_ == 1) return x.transpose(1, 2);
  const Tensor groups = x.unflatten(2, {kv_heads_, group_});
  if (is_masked()) return groups.permute({0, 2, 3, 1, 4}).flatten(0, 1);
  return groups.permute({0, 2, 1, 3, 4}).flatten(2, 3);
}

Tensor StackedSlices::unfold_queries(const Tensor& x) const {
  if (group_ == 1) return x.transpose(1, 2);
  if (is_masked()) return x.unflatten(0, {size_, kv_heads_}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
  return x.unflatten(2, {stack_.queries, group_}).permute({0, 2, 1, 3, 4}).flatten(2, 3);
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

Tensor StackedSlices::make_mask(const Tensor& like) const {
  // The kernels of GPUs read biases in steps of 8 elements.
  const int64_t stride = (stack_.keys + 7) / 8 * 8;
  std::vector<double> values(size_ * stride, 0);
  for (int64_t i = 0; i < size_; ++i)
    std::fill(values.begin() + i * stride + stack_.slices[i].keys,
              values.begin() + (i + 1) * stride, -std::numeric_limits<double>::infinity());
  const Tensor mask =
      at::tensor(values, at::kDouble).view({size_, 1, 1, stride}).to(like.options());
  return mask.narrow(3, 0, stack_.keys)
      .expand({like.size(0), like.size(1), like.size(2), stack_.keys});
}

}  // namespace zea::detail
