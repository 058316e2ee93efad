// SPDX-License-Identifier: Apache-2.0
#include "virtual_time.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "comm/agree.hpp"
#include "core/error.hpp"

namespace zea::bench {
namespace {

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TracedCall traced(const CollectiveCall& call, int group) {
  TracedCall traced{.kind = call.kind, .group = group, .bytes = {}, .sends = {}, .receives = {}};
  const auto bytes = [](int64_t count, DType type) {
    return static_cast<double>(count) * static_cast<double>(element_bytes(type));
  };
  for (const int64_t count : call.counts) traced.bytes.push_back(bytes(count, call.dtype));
  if (call.counts.empty()) traced.bytes = {bytes(call.count, call.dtype)};
  if (call.kind == CallKind::Send)
    traced.sends.push_back({call.peer, bytes(call.count, call.dtype)});
  if (call.kind == CallKind::Recv)
    traced.receives.push_back({call.peer, bytes(call.count, call.dtype)});
  for (const Message& message : call.sends)
    traced.sends.push_back({message.peer, bytes(message.count, message.dtype)});
  for (const Message& message : call.receives)
    traced.receives.push_back({message.peer, bytes(message.count, message.dtype)});
  return traced;
}

bool is_of_pairs(CallKind kind) {
  return kind == CallKind::Send || kind == CallKind::Recv || kind == CallKind::Exchange;
}

}  // namespace

OneAtATime::OneAtATime(const std::string& path)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_ < 0) throw StorageError(path + ": " + std::strerror(errno));
}

OneAtATime::~OneAtATime() {
  ::close(file_);
}

void OneAtATime::take() const {
  while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

void OneAtATime::give_back() const {
  ::flock(file_, LOCK_UN);
}

class Tracer::Work : public Pending::Work {
 public:
  Work(Tracer& tracer, int call, Pending inner)
      : tracer_(tracer), call_(call), inner_(std::move(inner)) {}
  ~Work() override { Work::wait(); }

  void wait() override {
    if (std::exchange(is_done_, true)) return;
    if (!tracer_.records_) return inner_.wait();
    tracer_.pause(call_, true);
    inner_.wait();
    tracer_.resume();
  }
  bool test() override {
    if (is_done_) return true;
    if (!inner_.test()) return false;
    wait();
    return true;
  }

 private:
  Tracer& tracer_;
  int call_;
  Pending inner_;
  bool is_done_ = false;
};

class Tracer::Traced : public WrappedCollectives {
 public:
  Traced(Tracer& tracer, int group, std::unique_ptr<Collectives> real)
      : WrappedCollectives(*real), tracer_(tracer), group_(group), real_(std::move(real)) {}

  Pending start(const CollectiveCall& call) override {
    if (!tracer_.records_ || size() == 1) return inner_.start(call);
    const int number = static_cast<int>(tracer_.trace_.calls.size());
    tracer_.pause(number, false);
    tracer_.trace_.calls.push_back(traced(call, group_));
    Pending pending = inner_.start(call);
    tracer_.resume();
    return Pending(std::make_unique<Work>(tracer_, number, std::move(pending)));
  }

  /// Synchronizes the members, in no virtual time.
  std::shared_ptr<void> allocate(int64_t bytes) override {
    if (!tracer_.records_) return inner_.allocate(bytes);
    const double used = tracer_.leave();
    std::shared_ptr<void> memory = inner_.allocate(bytes);
    tracer_.resume(used);
    return memory;
  }

 private:
  Tracer& tracer_;
  int group_;
  std::unique_ptr<Collectives> real_;
};

MakeCollectives Tracer::make() {
  return [this](const Communicator& communicator) -> std::unique_ptr<Collectives> {
    auto real = make_host_collectives(communicator);
    std::vector<int64_t> members(static_cast<size_t>(real->size()));
    const int64_t own = world_rank_;
    real->all_gather(&own, members.data(), Counts(members.size(), 1), DType::Int64).wait();
    std::string name;
    for (const int64_t member : members) name += std::to_string(member) + " ";
    name += "#" + std::to_string(made_[name]++);
    trace_.groups.push_back(name);
    trace_.members.emplace_back(members.begin(), members.end());
    return std::make_unique<Traced>(*this, static_cast<int>(trace_.groups.size()) - 1,
                                    std::move(real));
  };
}

void Tracer::begin() {
  trace_.calls.clear();
  trace_.events.clear();
  records_ = true;
  resume();
}

RankTrace Tracer::end() {
  trace_.last_seconds = leave();
  records_ = false;
  return trace_;
}

double Tracer::leave() const {
  const double used = thread_seconds() - resumed_;
  turn_.give_back();
  return used;
}

void Tracer::pause(int call, bool is_wait) {
  trace_.events.push_back({leave(), call, is_wait});
}

void Tracer::resume(double used) {
  turn_.take();
  resumed_ = thread_seconds() - used;
}

RankTrace least_of(const std::vector<RankTrace>& repeats) {
  const auto total = [](const RankTrace& trace) {
    return std::accumulate(trace.events.begin(), trace.events.end(), trace.last_seconds,
                           [](double sum, const TraceEvent& event) { return sum + event.seconds; });
  };
  const auto is_same = [](const TraceEvent& a, const TraceEvent& b) {
    return a.call == b.call && a.is_wait == b.is_wait;
  };
  RankTrace least = *std::ranges::min_element(repeats, {}, total);
  for (const RankTrace& repeat : repeats) {
    if (!std::ranges::equal(repeat.events, least.events, is_same)) continue;
    for (size_t i = 0; i < least.events.size(); ++i)
      least.events[i].seconds = std::min(least.events[i].seconds, repeat.events[i].seconds);
    least.last_seconds = std::min(least.last_seconds, repeat.last_seconds);
  }
  return least;
}

namespace {

using Json = nlohmann::json;

Json to_json(const std::vector<TracedMessage>& messages) {
  Json all = Json::array();
  for (const TracedMessage& message : messages) all.push_back({message.peer, message.bytes});
  return all;
}

std::vector<TracedMessage> messages_of(const Json& json) {
  std::vector<TracedMessage> messages;
  for (const Json& message : json) messages.push_back({message.at(0), message.at(1)});
  return messages;
}

Json to_json(const RankTrace& trace) {
  Json calls = Json::array(), events = Json::array();
  for (const TracedCall& call : trace.calls)
    calls.push_back({static_cast<int>(call.kind), call.group, call.bytes, to_json(call.sends),
                     to_json(call.receives)});
  for (const TraceEvent& event : trace.events)
    events.push_back({event.seconds, event.call, event.is_wait});
  return {{"groups", trace.groups},
          {"members", trace.members},
          {"calls", std::move(calls)},
          {"events", std::move(events)},
          {"last", trace.last_seconds}};
}

RankTrace trace_of(const Json& json) {
  RankTrace trace{.groups = json.at("groups"),
                  .members = json.at("members"),
                  .calls = {},
                  .events = {},
                  .last_seconds = json.at("last")};
  for (const Json& call : json.at("calls"))
    trace.calls.push_back({.kind = static_cast<CallKind>(call.at(0).get<int>()),
                           .group = call.at(1),
                           .bytes = call.at(2),
                           .sends = messages_of(call.at(3)),
                           .receives = messages_of(call.at(4))});
  for (const Json& event : json.at("events"))
    trace.events.push_back({event.at(0), event.at(1), event.at(2)});
  return trace;
}

/// Times of the members of a group: when they start a call, or are done with it.
using Times = std::vector<double>;

/// The links between members of a group.
class GroupLinks {
 public:
  GroupLinks(const Network& network, std::vector<int> nodes)
      : network_(network), nodes_(std::move(nodes)) {}

  int size() const { return static_cast<int>(nodes_.size()); }
  double alpha(int from, int to) const {
    return nodes_[from] == nodes_[to] ? network_.alpha_inside : network_.alpha_between;
  }
  double beta(int from, int to) const {
    return nodes_[from] == nodes_[to] ? network_.beta_inside : network_.beta_between;
  }
  double message(int from, int to, double bytes) const {
    return alpha(from, to) + beta(from, to) * bytes;
  }

  /// Steps of a ring, in which each member passes a part on.
  template <class PartOf>
  Times ring(Times now, PartOf bytes_passed) const {
    const int n = size();
    for (int step = 0; step + 1 < n; ++step) {
      Times next(now);
      for (int to = 0; to < n; ++to) {
        const int from = (to + n - 1) % n;
        next[to] = std::max(now[to], now[from] + message(from, to, bytes_passed(from, step)));
      }
      now = std::move(next);
    }
    return now;
  }

  /// Exchanges of all data with partners at twice the distance each time.
  Times doubling(Times now, double bytes) const {
    const int n = size();
    for (int distance = 1; distance < n; distance *= 2) {
      Times next(now);
      for (int to = 0; to < n; ++to) {
        const int from = (to + distance) % n;
        next[to] = std::max(now[to], now[from] + message(from, to, bytes));
      }
      now = std::move(next);
    }
    return now;
  }

  Times to_each(const Times& start, const std::vector<const TracedCall*>& calls) const {
    const int n = size();
    Times done(start);
    for (int from = 0; from < n; ++from) {
      double sent = start[from];
      for (int offset = 1; offset < n; ++offset) {
        const int to = (from + offset) % n;
        const double bytes = calls[from]->bytes[to];
        if (bytes == 0) continue;
        sent += beta(from, to) * bytes;
        done[to] = std::max(done[to], sent + alpha(from, to));
      }
    }
    return done;
  }

  Times done(const Times& start, const std::vector<const TracedCall*>& calls) const {
    const int n = size();
    const std::vector<double>& parts = calls.front()->bytes;
    const double all = std::accumulate(parts.begin(), parts.end(), 0.0);
    switch (calls.front()->kind) {
      case CallKind::AllGather:
        return ring(start, [&](int from, int step) { return parts[(from + n - step) % n]; });
      case CallKind::ReduceScatter:
        return ring(start, [&](int from, int step) { return parts[(from + n - step - 1) % n]; });
      case CallKind::AllReduce: {
        const auto part = [&](int, int) { return all / n; };
        const Times by_ring = ring(ring(start, part), part), by_doubling = doubling(start, all);
        return std::ranges::max(by_ring) < std::ranges::max(by_doubling) ? by_ring : by_doubling;
      }
      case CallKind::AllToAll:
        return to_each(start, calls);
      default:  // few, and small
        return doubling(start, all);
    }
  }

 private:
  const Network& network_;
  std::vector<int> nodes_;
};

class Replay {
 public:
  Replay(const std::vector<RankTrace>& ranks, const Network& network,
         const std::vector<int>& node_of)
      : traces_(ranks), network_(network), node_of_(node_of), clocks_(ranks.size()) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      done_.emplace_back(ranks[rank].calls.size(), kUnknown);
      for (const std::vector<int>& members : ranks[rank].members)
        own_places_[rank].push_back(
            static_cast<int>(std::ranges::find(members, static_cast<int>(rank)) - members.begin()));
    }
  }

  double seconds() {
    std::vector<size_t> next(traces_.size());
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t rank = 0; rank < traces_.size(); ++rank)
        while (next[rank] < traces_[rank].events.size() && act(rank, next[rank])) {
          ++next[rank];
          moves = true;
        }
    }
    double last = 0;
    for (size_t rank = 0; rank < traces_.size(); ++rank) {
      if (next[rank] < traces_[rank].events.size())
        throw InternalError("rank " + std::to_string(rank) + " waits for ever in the replay");
      last = std::max(last, clocks_[rank] + traces_[rank].last_seconds);
    }
    return last;
  }

 private:
  static constexpr double kUnknown = -1;

  /// The calls of a group, by their number in it.
  struct GroupCalls {
    std::vector<std::vector<std::pair<int, int>>> started;  ///< (place, call) of each number
    std::vector<int> count;                                 ///< calls of each member
    std::vector<Times> start;
    /// By pairs: when messages arrive, and the receives that have no message yet.
    std::map<std::pair<int, int>, std::deque<double>> arrivals;
    std::map<std::pair<int, int>, std::deque<std::pair<size_t, int>>> receives;
  };

  bool act(size_t rank, size_t number) {
    const TraceEvent& event = traces_[rank].events[number];
    double& clock = clocks_[rank];
    if (!event.is_wait) {
      clock += event.seconds;
      start(rank, event.call);
      return true;
    }
    const double done = done_[rank][event.call];
    if (done == kUnknown || missing_[{rank, event.call}] > 0) return false;
    clock = std::max(clock + event.seconds, done);
    return true;
  }

  GroupLinks links_of(const std::vector<int>& members) const {
    std::vector<int> nodes;
    for (const int member : members) nodes.push_back(node_of_[static_cast<size_t>(member)]);
    return {network_, std::move(nodes)};
  }

  void start(size_t rank, int number) {
    const RankTrace& trace = traces_[rank];
    const TracedCall& call = trace.calls[number];
    const std::vector<int>& members = trace.members[call.group];
    const int place = own_places_[rank][call.group];
    GroupCalls& group = groups_[trace.groups[call.group]];
    if (is_of_pairs(call.kind)) return start_messages(rank, number, place, group);
    group.count.resize(members.size());
    const auto k = static_cast<size_t>(group.count[place]++);
    if (group.started.size() <= k) {
      group.started.resize(k + 1);
      group.start.resize(k + 1, Times(members.size()));
    }
    group.started[k].emplace_back(place, number);
    group.start[k][place] = clocks_[rank];
    if (group.started[k].size() < members.size()) return;
    std::vector<const TracedCall*> calls(members.size());
    for (const auto& [other, other_call] : group.started[k])
      calls[other] = &traces_[members[other]].calls[other_call];
    const Times done = links_of(members).done(group.start[k], calls);
    for (const auto& [other, other_call] : group.started[k])
      done_[members[other]][other_call] = done[other];
  }

  /// A sender goes on at once; messages of a call leave one after the other.
  void start_messages(size_t rank, int number, int place, GroupCalls& group) {
    const TracedCall& call = traces_[rank].calls[number];
    const std::vector<int>& members = traces_[rank].members[call.group];
    const GroupLinks links = links_of(members);
    done_[rank][number] = clocks_[rank];
    double sent = clocks_[rank];
    for (const TracedMessage& message : call.sends) {
      sent += links.beta(place, message.peer) * message.bytes;
      group.arrivals[{place, message.peer}].push_back(sent + links.alpha(place, message.peer));
      match(group, {place, message.peer});
    }
    for (const TracedMessage& message : call.receives) {
      ++missing_[{rank, number}];
      group.receives[{message.peer, place}].emplace_back(rank, number);
      match(group, {message.peer, place});
    }
  }

  void match(GroupCalls& group, std::pair<int, int> pair) {
    auto& arrivals = group.arrivals[pair];
    auto& receives = group.receives[pair];
    while (!arrivals.empty() && !receives.empty()) {
      const auto [rank, call] = receives.front();
      done_[rank][call] = std::max(done_[rank][call], arrivals.front());
      --missing_[{rank, call}];
      arrivals.pop_front();
      receives.pop_front();
    }
  }

  const std::vector<RankTrace>& traces_;
  const Network& network_;
  const std::vector<int>& node_of_;
  Times clocks_;
  std::vector<Times> done_;                        ///< of each rank's calls
  std::map<std::pair<size_t, int>, int> missing_;  ///< messages that a call has not received
  std::map<size_t, std::vector<int>> own_places_;  ///< of each rank in its groups
  std::map<std::string, GroupCalls> groups_;
};

}  // namespace

std::vector<RankTrace> gather_traces(Collectives& control, const RankTrace& own) {
  std::vector<RankTrace> traces;
  for (const std::string& text : all_gather_texts(control, to_json(own).dump()))
    traces.push_back(trace_of(Json::parse(text)));
  return traces;
}

double replayed_seconds(const std::vector<RankTrace>& ranks, const Network& network,
                        const std::vector<int>& node_of) {
  return Replay(ranks, network, node_of).seconds();
}

}  // namespace zea::bench
