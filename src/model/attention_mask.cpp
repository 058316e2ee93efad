// SPDX-License-Identifier: Apache-2.0
#include "model/attention_mask.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "core/error.hpp"
#include "model/index_tensor.hpp"

namespace zea {
namespace {

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

std::vector<SliceStack> group_slices(const std::vector<AttentionSlice>& slices) {
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
    stacks.push_back({.slices = {slice}, .queries = queries, .keys = keys, .mask = slice.mask});
  }
  for (SliceStack& stack : stacks) {
    // A stack is as large as its largest slice: a slice alone needs no padding.
    stack.queries = stack.keys = 0;
    for (const AttentionSlice& slice : stack.slices) {
      stack.queries = std::max(stack.queries, slice.queries);
      stack.keys = std::max(stack.keys, slice.keys);
    }
  }
  return stacks;
}

/// Kernels know causal squares only: anti-causal slices go in with queries and keys in reverse
/// order.
void add_rows(SliceStack& stack, at::Device device) {
  const bool reverses = stack.mask == SliceMask::AntiCausal;
  if (stack.slices.size() == 1 && !reverses) return;
  const auto row = [&](int64_t first, int64_t count, int64_t i) {
    return i >= count ? first : reverses ? first + count - 1 - i : first + i;
  };
  Ids queries, keys, real, real_rows;
  for (const AttentionSlice& slice : stack.slices) {
    for (int64_t i = 0; i < stack.queries; ++i) {
      if (i < slice.queries) {
        real.push_back(std::ssize(queries));
        real_rows.push_back(row(slice.query, slice.queries, i));
      }
      queries.push_back(row(slice.query, slice.queries, i));
    }
    for (int64_t i = 0; i < stack.keys; ++i) keys.push_back(row(slice.key, slice.keys, i));
  }
  stack.query_rows = index_tensor(queries, device);
  stack.key_rows = index_tensor(keys, device);
  const bool has_padding = real.size() < queries.size();
  stack.real_rows = has_padding ? index_tensor(real_rows, device) : stack.query_rows;
  if (has_padding) stack.real = index_tensor(real, device);
}

/// Causal queries that are real see no key that is padding.
void add_padding(SliceStack& stack, at::Device device) {
  const auto is_padded = [&](const AttentionSlice& slice) { return slice.keys < stack.keys; };
  if (stack.mask != SliceMask::None || std::ranges::none_of(stack.slices, is_padded)) return;
  // The kernels of GPUs read biases in steps of 8 elements.
  const int64_t stride = (stack.keys + 7) / 8 * 8, slices = std::ssize(stack.slices);
  std::vector<float> values(slices * stride, 0);
  for (int64_t i = 0; i < slices; ++i)
    std::fill(values.begin() + i * stride + stack.slices[i].keys, values.begin() + (i + 1) * stride,
              -std::numeric_limits<float>::infinity());
  stack.padding = tensor_of(values, device).view({slices, 1, 1, stride});
}

/// Segments of one call: each has the slices of its queries.
struct RaggedCall {
  bool is_causal = false;
  std::vector<std::vector<AttentionSlice>> segments = {};

  const AttentionSlice& last() const { return segments.back().front(); }
  int64_t end() const { return last().query + last().queries; }
};

std::vector<RaggedCall> ragged_calls(std::vector<AttentionSlice> slices) {
  std::ranges::stable_sort(slices, {}, &AttentionSlice::query);
  std::vector<RaggedCall> calls;
  for (const AttentionSlice& slice : slices) {
    const bool is_causal = slice.mask != SliceMask::None;
    const auto has_its_queries = [&](const RaggedCall& call) {
      return !is_causal && !call.is_causal && call.last().query == slice.query &&
             call.last().queries == slice.queries;
    };
    const auto takes_segment = [&](const RaggedCall& call) {
      return call.is_causal == is_causal && call.end() <= slice.query;
    };
    if (const auto same = std::ranges::find_if(calls, has_its_queries); same != calls.end())
      same->segments.back().push_back(slice);
    else if (const auto free = std::ranges::find_if(calls, takes_segment); free != calls.end())
      free->segments.push_back({slice});
    else
      calls.push_back({is_causal, {{slice}}});
  }
  return calls;
}

void append_rows(Ids& rows, int64_t first, int64_t count, bool reverses) {
  for (int64_t i = 0; i < count; ++i) rows.push_back(first + (reverses ? count - 1 - i : i));
}

RaggedSlices ragged_slices(const RaggedCall& call, at::Device device) {
  RaggedSlices ragged;
  ragged.is_causal = call.is_causal;
  Ids queries, keys;
  std::vector<int32_t> query_bounds{0}, key_bounds{0};
  const auto end_segment = [](std::vector<int32_t>& bounds, const Ids& rows, int64_t& longest) {
    longest = std::max<int64_t>(longest, std::ssize(rows) - bounds.back());
    bounds.push_back(static_cast<int32_t>(rows.size()));
  };
  for (const std::vector<AttentionSlice>& segment : call.segments) {
    const AttentionSlice& first = segment.front();
    append_rows(queries, first.query, first.queries, first.mask == SliceMask::AntiCausal);
    for (const AttentionSlice& slice : segment)
      append_rows(keys, slice.key, slice.keys, slice.mask == SliceMask::AntiCausal);
    end_segment(query_bounds, queries, ragged.longest_queries);
    end_segment(key_bounds, keys, ragged.longest_keys);
  }
  ragged.query_rows = index_tensor(queries, device);
  ragged.key_rows = index_tensor(keys, device);
  ragged.query_bounds = tensor_of(query_bounds, device);
  ragged.key_bounds = tensor_of(key_bounds, device);
  return ragged;
}

std::vector<AttentionSlice> slices_of(const std::vector<Segment>& segments, SliceMask mask) {
  std::vector<AttentionSlice> slices;
  for (const auto& [start, length] : segments)
    slices.push_back({start, length, start, length, mask});
  return slices;
}

void check_that_they_follow(const std::vector<Segment>& segments) {
  int64_t end = 0;
  for (const Segment& segment : segments) {
    ZEA_ASSERT(segment.start == end);
    end += segment.length;
  }
}

}  // namespace

AttentionMask::AttentionMask(std::vector<Segment> segments, bool is_causal, at::Device device)
    : slices_(slices_of(segments, is_causal ? SliceMask::Causal : SliceMask::None)),
      segments_(std::move(segments)),
      is_causal_(is_causal),
      device_(device) {
  check_that_they_follow(segments_);
}

AttentionMask::AttentionMask(std::vector<Segment> segments, int64_t window,
                             std::vector<AttentionSlice> slices, at::Device device)
    : slices_(std::move(slices)),
      segments_(std::move(segments)),
      is_causal_(true),
      window_(window),
      device_(device) {
  check_that_they_follow(segments_);
}

bool AttentionMask::operator==(const AttentionMask& other) const {
  return slices_ == other.slices_ && segments_ == other.segments_ &&
         is_causal_ == other.is_causal_ && window_ == other.window_;
}

const std::vector<SliceStack>& AttentionMask::stacks(at::Device device) const {
  if (!stacks_.empty() && stacks_device_ == device) return stacks_;
  stacks_ = group_slices(slices_);
  stacks_device_ = device;
  for (SliceStack& stack : stacks_) {
    add_rows(stack, device);
    add_padding(stack, device);
  }
  return stacks_;
}

const std::vector<RaggedSlices>& AttentionMask::ragged(at::Device device) const {
  if (!ragged_.empty() && ragged_device_ == device) return ragged_;
  ragged_.clear();
  ragged_device_ = device;
  for (const RaggedCall& call : ragged_calls(slices_))
    ragged_.push_back(ragged_slices(call, device));
  return ragged_;
}

int64_t AttentionMask::longest() const {
  int64_t longest = 0;
  for (const Segment& segment : segments_) longest = std::max(longest, segment.length);
  return longest;
}

int64_t AttentionMask::even_length() const {
  const int64_t length = longest();
  const auto is_as_long = [&](const Segment& segment) { return segment.length == length; };
  return std::ranges::all_of(segments_, is_as_long) ? length : 0;
}

const at::Tensor& AttentionMask::bounds() const {
  if (bounds_.defined()) return bounds_;
  std::vector<int32_t> bounds{0};
  for (const Segment& segment : segments_)
    bounds.push_back(static_cast<int32_t>(segment.start + segment.length));
  return bounds_ = tensor_of(bounds, device_);
}

at::Tensor& AttentionMask::bounds_on(at::Device device) {
  bounds();
  device_ = device;
  return bounds_;
}

}  // namespace zea
