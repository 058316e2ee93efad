// SPDX-License-Identifier: Apache-2.0
#include "comm/recorded_collectives.hpp"

#include <algorithm>
#include <numeric>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "layout/collective_volume.hpp"

namespace zea {
namespace {

/// Enough of the members to tell groups of one name apart: these are disjoint.
std::string describe_group(const std::string& name, const std::vector<int>& ranks) {
  constexpr size_t kShown = 4;
  std::string text = name + " (ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    text += " " + std::to_string(ranks[i]);
  if (ranks.size() > kShown)
    text += " .. " + std::to_string(ranks.back()) + ", " + std::to_string(ranks.size()) + " in all";
  return text + ")";
}

/// "all_gather 120 float32", "send to rank 3 40 bfloat16".
std::string describe_call(const CollectiveCall& call, const AwaitedPeers& peers) {
  std::string text = call_name(call.kind);
  if (call.kind == CallKind::Send) text += " to rank";
  if (call.kind == CallKind::Recv) text += " from rank";
  if (call.kind == CallKind::Exchange) text += " with ranks";
  for (int peer : peers.world_ranks) text += " " + std::to_string(peer);
  return text + " " + std::to_string(call.count) + " " + dtype_name(call.dtype);
}

/// Ends the call in the record when the real work ends, whoever finds out.
class RecordedWork : public Pending::Work {
 public:
  RecordedWork(std::unique_ptr<Pending::Work> real, ActionRecord& record, ActionRecord::Call call,
               AwaitedPeers peers)
      : real_(std::move(real)), record_(record), call_(std::move(call)), peers_(std::move(peers)) {}

  ~RecordedWork() override {
    if (!real_) return;
    const ActionRecord::Wait wait(record_, call_, peers_);
    real_.reset();  // finishes it, or gives it up
    record_.end_call(call_);
  }

  void wait() override {
    if (!real_) return;
    {
      const ActionRecord::Wait wait(record_, call_, peers_);
      real_->wait();
    }
    if (!test())
      record_.leave_to_device(std::move(call_), std::move(peers_),
                              [real = std::move(real_)] { return real->test(); });
  }

  bool test() override {
    if (!real_) return true;
    if (!real_->test()) return false;
    real_.reset();
    record_.end_call(call_);
    return true;
  }

 private:
  std::shared_ptr<Pending::Work> real_;  ///< null: it has finished, or the device finishes it
  ActionRecord& record_;
  ActionRecord::Call call_;
  AwaitedPeers peers_;
};

class RecordedCollectives : public WrappedCollectives {
 public:
  RecordedCollectives(Collectives& real, ActionRecord& record, const std::string& name,
                      const std::vector<int>& world_ranks)
      : WrappedCollectives(real),
        record_(record),
        world_ranks_(world_ranks),
        group_(record.add_group(describe_group(name, world_ranks))) {}

  ~RecordedCollectives() override { record_.forget_device_calls(group_); }

  Pending start(const CollectiveCall& call) override {
    if (call.kind == CallKind::Barrier) {
      record_whole(call_name(call.kind), [&] { inner_.start(call).wait(); });
      return {};
    }
    AwaitedPeers peers = peers_of(call);
    ActionRecord::Call entry = record_.begin_call(group_, describe_call(call, peers));
    std::unique_ptr<Pending::Work> real = [&] {
      const ActionRecord::Wait wait(record_, entry, peers, "start ");
      return inner_.start(call).take();
    }();
    if (!real) {
      record_.end_call(entry);
      return {};
    }
    return Pending(std::make_unique<RecordedWork>(std::move(real), record_, std::move(entry),
                                                  std::move(peers)));
  }

  std::shared_ptr<void> allocate(int64_t bytes) override {
    std::shared_ptr<void> memory;
    record_whole("allocate", [&] { memory = inner_.allocate(bytes); });
    return memory;
  }

 private:
  /// Returns the peers of messages, by their world ranks; of an exchange each once, without this
  /// rank.
  AwaitedPeers peers_of(const CollectiveCall& call) const {
    std::vector<int> ranks;
    if (call.kind == CallKind::Send || call.kind == CallKind::Recv)
      ranks.push_back(world_ranks_[call.peer]);
    for (const auto* messages : {&call.receives, &call.sends})
      for (const Message& message : *messages) {
        const int peer = world_ranks_[message.peer];
        if (message.peer != rank() && std::find(ranks.begin(), ranks.end(), peer) == ranks.end())
          ranks.push_back(peer);
      }
    return {std::move(ranks)};
  }

  /// A call that returns when it has ended.
  template <class Start>
  void record_whole(const char* what, Start&& start) {
    ActionRecord::Call call = record_.begin_call(group_, what);
    {
      const ActionRecord::Wait wait(record_, call, {});
      start();
    }
    record_.end_call(call);
  }

  ActionRecord& record_;
  const std::vector<int> world_ranks_;
  const int group_;
};

}  // namespace

std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name,
                                                       const std::vector<int>& world_ranks) {
  return std::make_unique<RecordedCollectives>(real, record, name, world_ranks);
}

std::unique_ptr<Collectives> make_recorded_collectives(Collectives& real, ActionRecord& record,
                                                       const std::string& name) {
  std::vector<int> all(real.size());
  std::iota(all.begin(), all.end(), 0);
  return make_recorded_collectives(real, record, name, all);
}

namespace {

/// Returns the elements that this rank sends to others.
int64_t sent_bytes_of(const CollectiveCall& call, int rank, int size) {
  const auto bytes = [](int64_t elements, DType dtype) {
    return elements * static_cast<int64_t>(element_bytes(dtype));
  };
  switch (call.kind) {
    case CallKind::AllReduce:
      return bytes(sent_by_all_reduce(call.count, size, rank), call.dtype);
    case CallKind::AllGather:
      return bytes(sent_by_all_gather(call.counts, rank), call.dtype);
    case CallKind::ReduceScatter:
      return bytes(sent_by_reduce_scatter(call.counts, rank), call.dtype);
    case CallKind::AllToAll:
      return bytes(sent_by_all_to_all(call.counts, rank), call.dtype);
    case CallKind::Broadcast:
      return bytes(sent_by_broadcast(call.count, size, rank == call.peer), call.dtype);
    case CallKind::Gather:
      return bytes(sent_by_gather(call.counts, rank, call.peer), call.dtype);
    case CallKind::Send:
      return call.peer == rank ? 0 : bytes(call.count, call.dtype);
    case CallKind::Exchange:
      return std::accumulate(
          call.sends.begin(), call.sends.end(), int64_t{0},
          [&](int64_t sum, const Message& message) {
            return message.peer == rank ? sum : sum + bytes(message.count, message.dtype);
          });
    case CallKind::Recv:
    case CallKind::Barrier:
      return 0;
  }
  throw InternalError("unknown kind of call");
}

class CountedCollectives : public WrappedCollectives {
 public:
  CountedCollectives(Collectives& real, int64_t& sent_bytes)
      : WrappedCollectives(real), sent_bytes_(sent_bytes) {}

  Pending start(const CollectiveCall& call) override {
    sent_bytes_ += sent_bytes_of(call, rank(), size());
    return inner_.start(call);
  }

 private:
  int64_t& sent_bytes_;
};

}  // namespace

std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes) {
  return std::make_unique<CountedCollectives>(real, sent_bytes);
}

}  // namespace zea
