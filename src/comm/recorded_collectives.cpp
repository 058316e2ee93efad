// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/recorded_collectives.hpp"

#include <algorithm>
#include <numeric>

#include "zea/core/dtype.hpp"

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

/// Ends the call in the record when the real work ends, whoever finds out.
class RecordedWork : public Pending::Work {
 public:
  RecordedWork(Pending real, ActionRecord& record, ActionRecord::Call call, AwaitedPeers peers)
      : real_(std::move(real)), record_(record), call_(std::move(call)), peers_(std::move(peers)) {}

  ~RecordedWork() override {
    if (is_done_) return;
    const ActionRecord::Wait wait(record_, call_, peers_);
    real_ = Pending();  // finishes it, or gives it up
    end();
  }

  void wait() override {
    if (is_done_) return real_.wait();
    {
      const ActionRecord::Wait wait(record_, call_, peers_);
      real_.wait();
    }
    end();
  }

  bool test() override {
    if (!is_done_ && real_.test()) end();
    return is_done_;
  }

 private:
  void end() {
    is_done_ = true;
    record_.end_call(call_);
  }

  Pending real_;
  ActionRecord& record_;
  ActionRecord::Call call_;
  AwaitedPeers peers_;
  bool is_done_ = false;
};

class RecordedCollectives : public Collectives {
 public:
  RecordedCollectives(Collectives& real, ActionRecord& record, const std::string& name,
                      const std::vector<int>& world_ranks)
      : real_(real),
        record_(record),
        world_ranks_(world_ranks),
        group_(record.add_group(describe_group(name, world_ranks))) {}

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  const char* name() const override { return real_.name(); }
  std::string note() const override { return real_.note(); }

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    return record("all_reduce", count, dtype, {},
                  [&] { return real_.all_reduce(data, count, dtype, op); });
  }
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override {
    return record("all_gather", total(counts), dtype, {},
                  [&] { return real_.all_gather(send, receive, counts, dtype); });
  }
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override {
    return record("reduce_scatter", total(counts), dtype, {},
                  [&] { return real_.reduce_scatter(send, receive, counts, dtype); });
  }
  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override {
    return record("all_to_all", total(send_counts), dtype, {}, [&] {
      return real_.all_to_all(send, send_counts, receive, receive_counts, dtype);
    });
  }
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override {
    return record("broadcast", count, dtype, {},
                  [&] { return real_.broadcast(data, count, dtype, root); });
  }
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override {
    return record("gather", total(counts), dtype, {},
                  [&] { return real_.gather(send, receive, counts, dtype, root); });
  }
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override {
    return record("scatter", total(counts), dtype, {},
                  [&] { return real_.scatter(send, receive, counts, dtype, root); });
  }
  Pending send(const void* data, int64_t count, DType dtype, int destination) override {
    const int peer = world_ranks_[destination];
    return record("send to rank " + std::to_string(peer), count, dtype, {{peer}},
                  [&] { return real_.send(data, count, dtype, destination); });
  }
  Pending recv(void* data, int64_t count, DType dtype, int source) override {
    const int peer = world_ranks_[source];
    return record("recv from rank " + std::to_string(peer), count, dtype, {{peer}},
                  [&] { return real_.recv(data, count, dtype, source); });
  }
  Pending exchange(const std::vector<Message>& sends,
                   const std::vector<Message>& receives) override {
    AwaitedPeers peers;
    int64_t count = 0;
    for (const auto* messages : {&receives, &sends})
      for (const Message& message : *messages) add_peer(peers, world_ranks_[message.peer]);
    for (const Message& message : sends) count += message.count;
    std::string what = "exchange with ranks";
    for (int peer : peers.world_ranks) what += " " + std::to_string(peer);
    const DType dtype = !sends.empty()      ? sends[0].dtype
                        : !receives.empty() ? receives[0].dtype
                                            : DType::UInt8;
    return record(what, count, dtype, peers, [&] { return real_.exchange(sends, receives); });
  }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    std::shared_ptr<void> memory;
    record_whole("allocate", [&] { memory = real_.allocate(bytes); });
    return memory;
  }
  void barrier() override {
    record_whole("barrier", [&] { real_.barrier(); });
  }

 private:
  static int64_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  void add_peer(AwaitedPeers& peers, int peer) const {
    auto& ranks = peers.world_ranks;
    if (peer == world_ranks_[real_.rank()] ||
        std::find(ranks.begin(), ranks.end(), peer) != ranks.end())
      return;
    ranks.push_back(peer);
  }

  template <class Start>
  Pending record(const std::string& what, int64_t count, DType dtype, AwaitedPeers peers,
                 Start&& start) {
    ActionRecord::Call call =
        record_.begin_call(group_, what + " " + std::to_string(count) + " " + dtype_name(dtype));
    Pending real = [&] {
      const ActionRecord::Wait wait(record_, call, peers, "start ");
      return start();
    }();
    return Pending(std::make_unique<RecordedWork>(std::move(real), record_, std::move(call),
                                                  std::move(peers)));
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

  Collectives& real_;
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

}  // namespace zea
