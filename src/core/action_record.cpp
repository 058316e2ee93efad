// SPDX-License-Identifier: Apache-2.0
#include "zea/core/action_record.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "record_memory.hpp"

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
  Memory& memory = record.memory_;
  const auto num_peers = std::min<size_t>(peers.world_ranks.size(), kPeers);
  for (size_t i = 0; i < num_peers; ++i) memory.peers[i].store(peers.world_ranks[i], kRelaxed);
  memory.num_peers.store(static_cast<int64_t>(num_peers), kRelaxed);
  memory.waits_for_call.store(call.number, kRelaxed);
  memory.waits_in_group.store(call.group + 1, kRelease);
  record.open(span_.name, span_.begin);
}

ActionRecord::Wait::~Wait() {
  span_.end = clock_nanoseconds();
  record_.waited_ += span_.end - span_.begin;
  record_.memory_.waits_in_group.store(0, kRelease);
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
  call.span.end = clock_nanoseconds();
  if (memory_.num_calls.load(kRelaxed) - call.index <= kRecordedActions)
    memory_.calls[call.index % kRecordedActions].end.store(call.span.end, kRelaxed);
  moved();
  keep(std::move(call.span));
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
  trace_.clear();
  is_tracing_ = true;
}

std::vector<TraceSpan> ActionRecord::take_trace() {
  is_tracing_ = false;
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
