// SPDX-License-Identifier: Apache-2.0
// Slots by greedy graph coloring: buffers are vertices, and an edge joins two that may exist at the
// same time.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>

#include "schedule/schedule.hpp"
#include "schedule/schedule_trace.hpp"

namespace zea {
namespace {

using detail::Accumulation;
using detail::LiveRange;
using detail::ScheduleTrace;

/// The plan's time: each computation has a moment for each thing that happens around it.
constexpr int64_t kMoments = 5;
enum Moment : int64_t { kUnshardBefore, kCompute, kReshard, kUnshardAfter, kReduce };

int64_t at(size_t index, Moment moment) {
  return static_cast<int64_t>(index) * kMoments + moment;
}

/// From its first moment up to, not including, its last.
struct LiveInterval {
  int64_t begin;
  int64_t end;
};
using LiveIntervals = std::vector<std::vector<LiveInterval>>;  ///< of each buffer

/// When a slot holds a buffer: intervals that do not overlap.
class Occupied {
 public:
  bool meets(const std::vector<LiveInterval>& intervals) const {
    return std::ranges::any_of(intervals, [&](const LiveInterval& interval) {
      const auto next = end_of_.lower_bound(interval.end);  // begins behind it
      return next != end_of_.begin() && std::prev(next)->second > interval.begin;
    });
  }

  void add(const std::vector<LiveInterval>& intervals) {
    for (auto [begin, end] : intervals) {
      auto next = end_of_.lower_bound(end);
      while (next != end_of_.begin() && std::prev(next)->second > begin) {
        --next;
        begin = std::min(begin, next->first);
        end = std::max(end, next->second);
        next = end_of_.erase(next);
      }
      end_of_[begin] = end;
    }
  }

 private:
  std::map<int64_t, int64_t> end_of_;  ///< of each interval, by its begin
};

/// Each buffer in turn takes the first slot in which nobody meets it.
SlotPlan assign_in_order(const LiveIntervals& intervals, const std::vector<int64_t>& bytes,
                         const std::vector<int>& order) {
  SlotPlan plan;
  plan.slot_of_buffer.assign(intervals.size(), -1);
  std::vector<Occupied> slots;
  for (int buffer : order) {
    if (intervals[buffer].empty()) continue;
    const auto found = std::ranges::find_if(
        slots, [&](const Occupied& slot) { return !slot.meets(intervals[buffer]); });
    const auto slot = static_cast<size_t>(found - slots.begin());
    if (found == slots.end()) {
      slots.emplace_back();
      plan.bytes.push_back(0);
    }
    slots[slot].add(intervals[buffer]);
    plan.slot_of_buffer[buffer] = static_cast<int>(slot);
    plan.bytes[slot] = std::max(plan.bytes[slot], bytes[buffer]);
  }
  return plan;
}

/// Largest first is best where a few buffers are large, walking order where all are alike.
SlotPlan assign_slots(const LiveIntervals& intervals, const std::vector<int64_t>& bytes) {
  std::vector<int> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  const SlotPlan walking = assign_in_order(intervals, bytes, order);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bytes[a] > bytes[b]; });
  const SlotPlan largest_first = assign_in_order(intervals, bytes, order);
  return largest_first.total_bytes() < walking.total_bytes() ? largest_first : walking;
}

/// One gradient travels at a time, so all that need it have the same slot.
SlotPlan one_slot(const LiveIntervals& intervals, const std::vector<int64_t>& bytes) {
  SlotPlan plan;
  for (size_t buffer = 0; buffer < intervals.size(); ++buffer) {
    const bool needs = !intervals[buffer].empty() && bytes[buffer] > 0;
    plan.slot_of_buffer.push_back(needs ? 0 : -1);
    if (needs) plan.bytes = {std::max(plan.total_bytes(), bytes[buffer])};
  }
  return plan;
}

/// With the walk's first moment at `start`.
void add_gathered_intervals(const ScheduleTrace& trace, int64_t start, LiveIntervals& intervals) {
  for (size_t g = 0; g < intervals.size(); ++g) {
    if (!trace.input().shardings[g].gathered()) continue;
    for (const LiveRange& range : trace.live_ranges(static_cast<int>(g))) {
      const ScheduleTrace::Point point = trace.unshard_point(range);
      intervals[g].push_back({start + at(point.index, point.after ? kUnshardAfter : kUnshardBefore),
                              start + at(range.last, kReshard)});
    }
  }
}

/// A gradient lives from its first backward until the next one starts to be reduced: then the
/// engine finishes its own reduction.
LiveIntervals gradient_intervals(const ScheduleTrace& trace) {
  std::vector<Accumulation> all;
  const size_t buffers = trace.input().buffers.size();
  for (size_t g = 0; g < buffers; ++g)
    if (trace.input().buffers[g].trainable && trace.input().shardings[g].gathered())
      for (const Accumulation& sum : trace.accumulations(static_cast<int>(g))) all.push_back(sum);
  std::stable_sort(all.begin(), all.end(),
                   [](const Accumulation& a, const Accumulation& b) { return a.last < b.last; });
  LiveIntervals intervals(buffers);
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t end =
        i + 1 < all.size() ? at(all[i + 1].last, kReduce) : std::numeric_limits<int64_t>::max();
    intervals[all[i].buffer].push_back({at(all[i].first, kCompute), end});
  }
  return intervals;
}

/// The bytes of each buffer in each kind of slot; 0 on the wire where it needs none.
struct BufferBytes {
  std::vector<int64_t> gathered, gradients, wire;
};

BufferBytes bytes_of(const ScheduleParts& parts, const Precisions& precisions) {
  BufferBytes bytes;
  for (size_t g = 0; g < parts.buffers.size(); ++g) {
    const Precision& precision = precisions.at(parts.buffers[g].module);
    const int64_t elements = parts.buffers[g].padded(parts.shardings[g].shards);
    const auto bytes_in = [&](DType dtype) {
      return elements * static_cast<int64_t>(element_bytes(dtype));
    };
    bytes.gathered.push_back(bytes_in(precision.param));
    bytes.gradients.push_back(bytes_in(precision.master));
    bytes.wire.push_back(precision.reduce == precision.master ? 0 : bytes_in(precision.reduce));
  }
  return bytes;
}

SlotPlans slots_of_group(const ScheduleInput& input, const BufferBytes& bytes) {
  const ScheduleTrace trace(input);
  const LiveIntervals reduced = gradient_intervals(trace);
  // An evaluation meets others than training: in the plan it comes after it.
  LiveIntervals kept(input.buffers.size());
  add_gathered_intervals(trace, 0, kept);
  ScheduleInput evaluation = input;
  evaluation.kind = StepKind::Evaluate;
  add_gathered_intervals(ScheduleTrace(evaluation), at(trace.size(), kUnshardBefore), kept);
  return {assign_slots(kept, bytes.gathered), assign_slots(reduced, bytes.gradients),
          one_slot(reduced, bytes.wire)};
}

}  // namespace

int64_t SlotPlan::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

std::vector<SlotPlans> make_slots(const ScheduleParts& parts, const Precisions& precisions) {
  const BufferBytes bytes = bytes_of(parts, precisions);
  // So many microbatches with work for every unit that what lies beside what does not change after
  // them: virtual stages take turns after as many microbatches as there are stage groups.
  MicrobatchPlan one{.samples = {0}, .rows = 1, .tokens = 1, .targets = 1, .items = {}};
  for (int encoder = 0; encoder < std::ssize(parts.model.encoders); ++encoder)
    one.items.add(encoder, 1);
  const std::vector<MicrobatchPlan> busy(2 * parts.pipeline.stage_groups.size(), one);
  const std::vector<MicrobatchKinds> kinds(busy.size(), {busy[0].kind()});
  ScheduleInput input{parts, busy, kinds, kinds};
  std::vector<SlotPlans> slots;
  for (size_t group = 0; group < parts.pipeline.stage_groups.size(); ++group) {
    input.group = static_cast<int>(group);
    slots.push_back(slots_of_group(input, bytes));
  }
  return slots;
}

}  // namespace zea
