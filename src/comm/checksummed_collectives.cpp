// SPDX-License-Identifier: Apache-2.0
#include "comm/checksummed_collectives.hpp"

#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "comm/reduce_elements.hpp"
#include "core/error.hpp"
#include "core/mixed_bits.hpp"

namespace zea {
namespace {

/// Sums a hash of each word of 8 bytes. The hash is a bijection that depends on the word's
/// position, so a change of one word always changes the sum.
uint64_t checksum(const std::byte* data, int64_t bytes) {
  constexpr int64_t kWord = sizeof(uint64_t);
  uint64_t sum = 0;
  for (int64_t first = 0; first < bytes; first += kWord) {
    uint64_t word = 0;
    std::memcpy(&word, data + first, static_cast<size_t>(std::min(kWord, bytes - first)));
    sum += mixed(word + static_cast<uint64_t>(first) * kGoldenGamma);
  }
  return sum;
}

/// Bytes from another rank, and the checksum that came with them.
struct Received {
  const std::byte* data;
  int64_t bytes;
  int peer;
  const uint64_t* checksum;
};

/// A call in progress. Messages point to the elements of `sums`, which is a deque because its
/// elements keep their addresses.
struct CheckedCall {
  std::deque<uint64_t> sums;          ///< of messages, sent and received
  std::vector<uint64_t> own, others;  ///< of collectives
  std::vector<std::byte> summands;
  std::vector<Received> received;
  std::function<void()> finish;  ///< adds the summands
  Pending data, checksums;       ///< last: they end before the buffers
};

class CheckedWork : public Pending::Work {
 public:
  using Check = std::function<void(const CheckedCall&)>;
  CheckedWork(std::unique_ptr<CheckedCall> call, Check check)
      : call_(std::move(call)), check_(std::move(check)) {}

  ~CheckedWork() override {
    if (!call_) return;
    if (std::uncaught_exceptions() > 0) {
      call_->data = {};
      call_->checksums = {};
      (void)call_.release();  // a call that is given up may still write to the buffers
      return;
    }
    try {
      call_->data.wait();
      call_->checksums.wait();
      if (call_->finish) call_->finish();
    } catch (...) {
      // Nobody waits for this call; whoever waits for another one learns of the fault.
    }
  }
  void wait() override {
    if (!call_) return;
    call_->data.wait();
    call_->checksums.wait();
    end();
  }
  bool test() override {
    if (!call_) return true;
    if (!call_->data.test() || !call_->checksums.test()) return false;
    end();
    return true;
  }

 private:
  void end() {
    const std::unique_ptr<CheckedCall> call = std::move(call_);
    check_(*call);
    if (call->finish) call->finish();
  }

  std::unique_ptr<CheckedCall> call_;  ///< null once the call has ended
  Check check_;
};

class ChecksummedCollectives : public WrappedCollectives {
 public:
  ChecksummedCollectives(Collectives& real, std::string name, std::vector<int> world_ranks)
      : WrappedCollectives(real), name_(std::move(name)), world_ranks_(std::move(world_ranks)) {}

  Pending start(const CollectiveCall& call) override {
    if (size() == 1 || call.kind == CallKind::Barrier) return inner_.start(call);
    auto checked = std::make_unique<CheckedCall>();
    start(call, *checked);
    return Pending(std::make_unique<CheckedWork>(
        std::move(checked),
        [this, kind = call.kind](const CheckedCall& ended) { check(kind, ended); }));
  }

 private:
  void start(const CollectiveCall& call, CheckedCall& checked) {
    switch (call.kind) {
      case CallKind::AllReduce:
        return start_all_reduce(call, checked);
      case CallKind::AllGather:
        return start_all_gather(call.send, call.receive, call.counts, call.dtype, checked);
      case CallKind::ReduceScatter:
        return start_reduce_scatter(call, checked);
      case CallKind::AllToAll:
        return start_all_to_all(call, call.receive, call.receive_counts, checked);
      case CallKind::Broadcast:
        return start_broadcast(call, checked);
      case CallKind::Gather:
        return start_gather(call, checked);
      case CallKind::Send:
      case CallKind::Recv:
      case CallKind::Exchange:
        return start_messages(call, checked);
      case CallKind::Barrier:
        break;
    }
    throw InternalError("unknown kind of call");
  }

  void start_all_reduce(const CollectiveCall& call, CheckedCall& checked) {
    const Counts counts(size(), call.count);
    const int64_t bytes = call.count * static_cast<int64_t>(element_bytes(call.dtype));
    checked.summands.resize(static_cast<size_t>(size() * bytes));
    start_all_gather(call.receive, checked.summands.data(), counts, call.dtype, checked);
    add_summands(call, call.count, call.op, checked);
  }
  void start_reduce_scatter(const CollectiveCall& call, CheckedCall& checked) {
    const int64_t own = call.counts[rank()];
    const int64_t bytes = own * static_cast<int64_t>(element_bytes(call.dtype));
    checked.summands.resize(static_cast<size_t>(size() * bytes));
    start_all_to_all(call, checked.summands.data(), Counts(size(), own), checked);
    add_summands(call, own, ReduceOp::Sum, checked);
  }
  /// Adds the packed summands, of `count` elements each, after they were checked.
  void add_summands(const CollectiveCall& call, int64_t count, ReduceOp op, CheckedCall& checked) {
    checked.finish = [&checked, result = call.receive, dtype = call.dtype, count, op,
                      ranks = size()] {
      const int64_t bytes = count * static_cast<int64_t>(element_bytes(dtype));
      std::vector<const void*> parts;
      for (int peer = 0; peer < ranks; ++peer)
        parts.push_back(checked.summands.data() + peer * bytes);
      reduce_elements(parts, result, count, dtype, op);
    };
  }

  void start_all_gather(const void* send, void* receive, const Counts& counts, DType dtype,
                        CheckedCall& checked) {
    checked.own = {of(send, counts[rank()], dtype)};
    checked.others.resize(size());
    checked.data = inner_.all_gather(send, receive, counts, dtype);
    checked.checksums = inner_.all_gather(checked.own.data(), checked.others.data(),
                                          Counts(size(), 1), DType::Int64);
    add_received(receive, counts, dtype, checked);
  }
  void start_all_to_all(const CollectiveCall& call, void* receive, const Counts& receive_counts,
                        CheckedCall& checked) {
    const auto* part = static_cast<const std::byte*>(call.send);
    for (const int64_t count : call.counts) {
      checked.own.push_back(of(part, count, call.dtype));
      part += count * static_cast<int64_t>(element_bytes(call.dtype));
    }
    checked.others.resize(size());
    checked.data = inner_.all_to_all(call.send, call.counts, receive, receive_counts, call.dtype);
    const Counts ones(size(), 1);
    checked.checksums =
        inner_.all_to_all(checked.own.data(), ones, checked.others.data(), ones, DType::Int64);
    add_received(receive, receive_counts, call.dtype, checked);
  }
  void start_gather(const CollectiveCall& call, CheckedCall& checked) {
    checked.own = {of(call.send, call.counts[rank()], call.dtype)};
    checked.others.resize(size());
    checked.data = inner_.gather(call.send, call.receive, call.counts, call.dtype, call.peer);
    checked.checksums = inner_.gather(checked.own.data(), checked.others.data(), Counts(size(), 1),
                                      DType::Int64, call.peer);
    if (rank() == call.peer) add_received(call.receive, call.counts, call.dtype, checked);
  }
  void start_broadcast(const CollectiveCall& call, CheckedCall& checked) {
    const bool sends = rank() == call.peer;
    checked.own = {sends ? of(call.receive, call.count, call.dtype) : 0};
    checked.data = inner_.broadcast(call.receive, call.count, call.dtype, call.peer);
    checked.checksums = inner_.broadcast(checked.own.data(), 1, DType::Int64, call.peer);
    if (!sends)
      add_message(call.receive, call.count, call.dtype, call.peer, checked.own.front(), checked);
  }
  /// After each message another one brings its checksum to the same peer.
  void start_messages(const CollectiveCall& call, CheckedCall& checked) {
    std::vector<Message> sends = call.sends, receives = call.receives;
    if (call.kind == CallKind::Send)
      sends = {{const_cast<void*>(call.send), call.count, call.dtype, call.peer}};
    if (call.kind == CallKind::Recv) receives = {{call.receive, call.count, call.dtype, call.peer}};
    std::vector<Message> all_sends, all_receives;
    for (const Message& message : sends) {
      checked.sums.push_back(of(message.data, message.count, message.dtype));
      all_sends.insert(all_sends.end(),
                       {message, {&checked.sums.back(), 1, DType::Int64, message.peer}});
    }
    for (const Message& message : receives) {
      checked.sums.push_back(0);
      all_receives.insert(all_receives.end(),
                          {message, {&checked.sums.back(), 1, DType::Int64, message.peer}});
      add_message(message.data, message.count, message.dtype, message.peer, checked.sums.back(),
                  checked);
    }
    checked.data = inner_.exchange(std::move(all_sends), std::move(all_receives));
  }

  static uint64_t of(const void* data, int64_t count, DType dtype) {
    return checksum(static_cast<const std::byte*>(data),
                    count * static_cast<int64_t>(element_bytes(dtype)));
  }
  static void add_message(const void* data, int64_t count, DType dtype, int peer,
                          const uint64_t& checksum, CheckedCall& checked) {
    checked.received.push_back({static_cast<const std::byte*>(data),
                                count * static_cast<int64_t>(element_bytes(dtype)), peer,
                                &checksum});
  }
  /// Adds the packed parts that came from all ranks to those that check() verifies.
  void add_received(const void* data, const Counts& counts, DType dtype,
                    CheckedCall& checked) const {
    const auto* part = static_cast<const std::byte*>(data);
    for (int peer = 0; peer < size(); ++peer) {
      add_message(part, counts[peer], dtype, peer, checked.others[peer], checked);
      part += counts[peer] * static_cast<int64_t>(element_bytes(dtype));
    }
  }

  void check(CallKind kind, const CheckedCall& call) const {
    for (const Received& part : call.received)
      if (checksum(part.data, part.bytes) != *part.checksum)
        throw Error(ExitCode::SickNode,
                    std::string(call_name(kind)) + " of " + name_ + ": rank " +
                        std::to_string(world_ranks_[rank()]) + " received other bits than rank " +
                        std::to_string(world_ranks_[part.peer]) + " sent (" +
                        std::to_string(part.bytes) +
                        " bytes, found by run.collective_checksums); memory or a cable of one of "
                        "their nodes changes bits: resume with -r on other nodes; zea --check-node "
                        "may name the faulty one");
  }

  const std::string name_;
  const std::vector<int> world_ranks_;
};

}  // namespace

std::unique_ptr<Collectives> make_checksummed_collectives(Collectives& real,
                                                          const std::string& name,
                                                          const std::vector<int>& world_ranks) {
  return std::make_unique<ChecksummedCollectives>(real, name, world_ranks);
}

}  // namespace zea
