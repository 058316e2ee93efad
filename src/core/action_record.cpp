// SPDX-License-Identifier: Apache-2.0
#include "core/action_record.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>

#include "core/error.hpp"

namespace zea {

// The layout of a record in memory. All members are lock-free atomics, so that a reader in another
// process sees whole words, and zeroed memory is an empty record.

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kOpenActions = 8;
constexpr int kGroups = 128;
constexpr int kPeers = 16;

/// Text in words; longer text is truncated.
template <int Words>
struct RecordedText {
  std::array<std::atomic<uint64_t>, Words> words;

  void write(std::string_view text);
  std::string read() const;
};

/// A line whose version is odd is being written.
struct RecordedLine {
  std::atomic<uint64_t> version;
  std::atomic<int64_t> begin, end;
  RecordedText<14> name;
};

struct RecordedGroup {
  std::atomic<int64_t> calls;
  RecordedText<10> name;
};

/// The call and the ranks that a rank waits for.
struct RecordedAwaited {
  std::atomic<int64_t> in_group;  ///< 1 + the group; 0: for nothing
  std::atomic<int64_t> for_call, num_peers;
  std::array<std::atomic<int32_t>, kPeers> peers;

  void write(const ActionRecord::Call& call, const AwaitedPeers& awaited);
  void clear() { in_group.store(0, std::memory_order_release); }
};

struct ActionRecord::Memory {
  std::atomic<int64_t> process, left, step, moves, moved_at, heartbeat;
  std::atomic<int64_t> depth;  ///< of open actions; may exceed kOpenActions
  std::atomic<int64_t> num_actions, num_calls, num_groups;
  RecordedAwaited host_awaits, device_awaits;
  std::array<RecordedLine, kOpenActions> open;
  RecordedLine on_device;  ///< the call of device_awaits; without a name: none
  std::array<RecordedLine, kRecordedActions> actions, calls;
  std::array<RecordedGroup, kGroups> groups;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<int32_t>::is_always_lock_free);

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

template <int Words>
std::string RecordedText<Words>::read() const {
  char bytes[Words * sizeof(uint64_t)];
  for (int i = 0; i < Words; ++i) {
    const uint64_t word = words[i].load(kRelaxed);
    std::memcpy(bytes + i * sizeof word, &word, sizeof word);
  }
  return {bytes, strnlen(bytes, sizeof bytes)};
}

namespace {

constexpr auto kAcquire = std::memory_order_acquire;
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

/// A writer that was stopped in the middle of a line never completes it.
constexpr int kTries = 100;

/// Reads a line into `span`; returns false where a writer is in the middle of it.
bool read_line(const RecordedLine& line, RecordedSpan& span) {
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = line.version.load(kAcquire);
    span = {line.name.read(), line.begin.load(kRelaxed), line.end.load(kRelaxed)};
    std::atomic_thread_fence(kAcquire);
    if (before % 2 == 0 && line.version.load(kRelaxed) == before) return true;
  }
  return false;
}

using Ring = std::array<RecordedLine, kRecordedActions>;

std::vector<RecordedSpan> read_ring(const Ring& ring, int64_t written) {
  std::vector<RecordedSpan> spans;
  for (int64_t i = std::max<int64_t>(0, written - kRecordedActions); i < written; ++i)
    if (RecordedSpan span; read_line(ring[i % kRecordedActions], span))
      spans.push_back(std::move(span));
  return spans;
}

}  // namespace

int64_t clock_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
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
  // Perhaps nobody else ever calls look_at_device(). The calls of a group end in order, so this
  // asks only one call more than have ended.
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

/// Records the call that the device received first as the one that it waits for.
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

/// A friend of ActionRecord, which sees the type of its memory.
struct RankStateReader {
  using Memory = ActionRecord::Memory;

  static const Memory& memory(const std::byte* bytes) {
    return *reinterpret_cast<const Memory*>(bytes);
  }

  static std::optional<RecordedWait> read(const Memory& memory, const RecordedAwaited& awaits) {
    const int64_t group = awaits.in_group.load(kAcquire) - 1;
    if (group < 0 || group >= kGroups) return std::nullopt;
    RecordedWait wait{memory.groups[group].name.read(), awaits.for_call.load(kRelaxed), {}};
    const int64_t peers = std::min<int64_t>(awaits.num_peers.load(kRelaxed), kPeers);
    for (int64_t i = 0; i < peers; ++i) wait.peers.push_back(awaits.peers[i].load(kRelaxed));
    return wait;
  }

  /// A host that waits for nobody may wait for its device.
  static std::optional<RecordedWait> waits(const Memory& memory) {
    const std::optional<RecordedWait> host = read(memory, memory.host_awaits);
    return host ? host : read(memory, memory.device_awaits);
  }

  static std::optional<RecordedSpan> on_device(const Memory& memory) {
    RecordedSpan span;
    if (!read_line(memory.on_device, span) || span.name.empty()) return std::nullopt;
    return span;
  }

  static RankState read(const Memory& memory) {
    RankState state{.process = memory.process.load(kRelaxed),
                    .has_left = memory.left.load(kRelaxed) != 0,
                    .step = memory.step.load(kRelaxed),
                    .moves = memory.moves.load(kRelaxed),
                    .moved_at = memory.moved_at.load(kRelaxed),
                    .heartbeat = memory.heartbeat.load(kRelaxed),
                    .actions = read_ring(memory.actions, memory.num_actions.load(kAcquire)),
                    .calls = read_ring(memory.calls, memory.num_calls.load(kAcquire)),
                    .waits = waits(memory),
                    .on_device = on_device(memory)};
    const int64_t depth = std::min<int64_t>(memory.depth.load(kAcquire), kOpenActions);
    for (int64_t i = 0; i < depth; ++i)
      if (RecordedSpan span; read_line(memory.open[i], span)) state.open.push_back(std::move(span));
    const int64_t groups = std::min<int64_t>(memory.num_groups.load(kAcquire), kGroups);
    for (int64_t g = 0; g < groups; ++g)
      state.calls_of_group[memory.groups[g].name.read()] = memory.groups[g].calls.load(kRelaxed);
    return state;
  }
};

RankState read_rank_state(const std::byte* memory) {
  return RankStateReader::read(RankStateReader::memory(memory));
}

int64_t read_moves(const std::byte* memory) {
  return RankStateReader::memory(memory).moves.load(kRelaxed);
}

int64_t read_heartbeat(const std::byte* memory) {
  return RankStateReader::memory(memory).heartbeat.load(kRelaxed);
}

}  // namespace zea
