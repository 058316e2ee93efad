// SPDX-License-Identifier: Apache-2.0
#include "core/action_record.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>

#include "core/error.hpp"
#include "core/record_memory.hpp"

namespace zea {
namespace {

constexpr auto kRelease = std::memory_order_release;

void write_line(RecordedLine& line, std::string_view name, int64_t begin, int64_t end) {
  const uint64_t version = line.version.load(kRelaxed);
  line.version.store(version + 1, kRelaxed);
  std::atomic_thread_fence(kRelease);
  line.begin.store(begin, kRelaxed);
  line.end.store(end, kRelaxed);
  line.name.write(name);
  line.version.store(version + 2, kRelease);
}

}  // namespace

int64_t clock_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <int Words>
void RecordedText<Words>::write(std::string_view text) {
  char bytes[Words * sizeof(uint64_t)] = {};
  std::memcpy(bytes, text.data(), std::min(text.size(), sizeof bytes - 1));
  for (int i = 0; i < Words; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    words[i].store(word, kRelaxed);
    if (bytes[(i + 1) * sizeof word - 1] == '\0') break;  // the text ends here
  }
}

void RecordedAwaited::write(const ActionRecord::Call& call, const AwaitedPeers& awaited) {
  const auto count = std::min<size_t>(awaited.world_ranks.size(), kPeers);
  for (size_t i = 0; i < count; ++i) peers[i].store(awaited.world_ranks[i], kRelaxed);
  num_peers.store(static_cast<int64_t>(count), kRelaxed);
  for_call.store(call.number, kRelaxed);
  in_group.store(call.group + 1, kRelease);
}

size_t ActionRecord::memory_bytes() {
  return sizeof(Memory);
}

ActionRecord::ActionRecord(std::byte* memory)
    : own_(memory ? nullptr : new std::byte[sizeof(Memory)]()),
      memory_(*new (memory ? memory : own_.get()) Memory()) {
  memory_.process = getpid();
  moved();
  beat();
}

ActionRecord::~ActionRecord() = default;

ActionRecord::Action::Action(ActionRecord& record, std::string_view name) : record_(record) {
  span_.begin = clock_nanoseconds();
  span_.name = name;
  record.open(name, span_.begin);
}

ActionRecord::Action::~Action() {
  span_.end = clock_nanoseconds();
  Memory& memory = record_.memory_;
  const int64_t done = memory.num_actions.load(kRelaxed);
  write_line(memory.actions[done % kRecordedActions], span_.name, span_.begin, span_.end);
  memory.num_actions.store(done + 1, kRelease);
  record_.close();
  record_.keep(std::move(span_));
}

ActionRecord::Wait::Wait(ActionRecord& record, const Call& call, const AwaitedPeers& peers,
                         const char* verb)
    : record_(record) {
  span_.begin = clock_nanoseconds();
  span_.name = verb + call.span.name;
  record.memory_.host_awaits.write(call, peers);
  record.open(span_.name, span_.begin);
}

ActionRecord::Wait::~Wait() {
  span_.end = clock_nanoseconds();
  record_.waited_ += span_.end - span_.begin;
  record_.memory_.host_awaits.clear();
  record_.close();
  record_.keep(std::move(span_));
}

void ActionRecord::begin_step(int64_t step) {
  memory_.step.store(step, kRelaxed);
}

int ActionRecord::add_group(std::string_view name) {
  const auto there = std::find(group_names_.begin(), group_names_.end(), name);
  if (there != group_names_.end()) return static_cast<int>(there - group_names_.begin());
  const auto group = static_cast<int>(group_names_.size());
  if (group == kGroups) return -1;
  group_names_.emplace_back(name);
  memory_.groups[group].name.write(name);
  memory_.num_groups.store(group + 1, kRelease);
  return group;
}

ActionRecord::Call ActionRecord::begin_call(int group, std::string_view what) {
  Call call{.group = group, .index = memory_.num_calls.load(kRelaxed)};
  call.span.begin = clock_nanoseconds();
  call.span.name = what;
  if (group >= 0) {
    call.number = memory_.groups[group].calls.load(kRelaxed) + 1;
    memory_.groups[group].calls.store(call.number, kRelease);
    call.span.name += " #" + std::to_string(call.number) + " of " + group_names_[group];
  }
  write_line(memory_.calls[call.index % kRecordedActions], call.span.name, call.span.begin, 0);
  memory_.num_calls.store(call.index + 1, kRelease);
  moved();
  return call;
}

void ActionRecord::end_call(Call& call) {
  write_end(call);
  keep(std::move(call.span));
}

void ActionRecord::write_end(Call& call) {
  call.span.end = clock_nanoseconds();
  if (memory_.num_calls.load(kRelaxed) - call.index <= kRecordedActions)
    memory_.calls[call.index % kRecordedActions].end.store(call.span.end, kRelaxed);
  moved();
}

void ActionRecord::leave_to_device(Call call, AwaitedPeers peers, HasEnded has_ended) {
  const std::lock_guard lock(device_mutex_);
  std::deque<DeviceCall>& of_group = device_calls_[call.group];
  of_group.push_back({std::move(call), std::move(peers), std::move(has_ended)});
  // Nobody else may ever look. Each of a group ends after those before it, so this asks but once
  // more than calls have ended.
  end_device_calls(of_group);
  tell_device_wait();
}

void ActionRecord::look_at_device() {
  const std::lock_guard lock(device_mutex_);
  for (auto& [group, calls] : device_calls_) end_device_calls(calls);
  tell_device_wait();
}

void ActionRecord::forget_device_calls(int group) {
  const std::lock_guard lock(device_mutex_);
  device_calls_.erase(group);
  tell_device_wait();
}

void ActionRecord::end_device_calls(std::deque<DeviceCall>& of_group) {
  const auto has_ended = [](const DeviceCall& left) {
    try {
      return left.has_ended();
    } catch (const std::exception& error) {  // libtorch has errors of its own
      throw CommError("the device has not done " + left.call.span.name + ": " + error.what());
    }
  };
  while (!of_group.empty() && has_ended(of_group.front())) {
    Call& call = of_group.front().call;
    write_end(call);
    if (is_tracing_) device_trace_.push_back(std::move(call.span));
    of_group.pop_front();
  }
}

/// What a device stands at is what it was given first.
void ActionRecord::tell_device_wait() {
  const DeviceCall* first = nullptr;
  for (const auto& [group, calls] : device_calls_)
    if (!calls.empty() && (!first || calls.front().call.index < first->call.index))
      first = &calls.front();
  if (first == nullptr) {
    if (memory_.on_device.begin.load(kRelaxed) == 0) return;
    memory_.device_awaits.clear();
    return write_line(memory_.on_device, "", 0, 0);
  }
  memory_.device_awaits.write(first->call, first->peers);
  write_line(memory_.on_device, first->call.span.name, first->call.span.begin, 0);
}

void ActionRecord::moved() {
  memory_.moves.fetch_add(1, kRelaxed);
  memory_.moved_at.store(clock_nanoseconds(), kRelaxed);
}

void ActionRecord::beat() {
  memory_.heartbeat.store(clock_nanoseconds(), kRelaxed);
}

void ActionRecord::leave() {
  memory_.left.store(1, kRelaxed);
}

void ActionRecord::start_trace() {
  const std::lock_guard lock(device_mutex_);
  trace_.clear();
  device_trace_.clear();
  is_tracing_ = true;
}

std::vector<TraceSpan> ActionRecord::take_trace() {
  const std::lock_guard lock(device_mutex_);
  is_tracing_ = false;
  std::move(device_trace_.begin(), device_trace_.end(), std::back_inserter(trace_));
  return std::move(trace_);
}

void ActionRecord::open(std::string_view name, int64_t now) {
  const int64_t depth = memory_.depth.load(kRelaxed);
  if (depth < kOpenActions) write_line(memory_.open[depth], name, now, 0);
  memory_.depth.store(depth + 1, kRelease);
  moved();
}

void ActionRecord::close() {
  memory_.depth.store(memory_.depth.load(kRelaxed) - 1, kRelease);
  moved();
}

void ActionRecord::keep(TraceSpan&& span) {
  if (is_tracing_) trace_.push_back(std::move(span));
}

template struct RecordedText<14>;
template struct RecordedText<10>;

}  // namespace zea
