// SPDX-License-Identifier: Apache-2.0
// A roll call before each call, hidden receives, watched sends, rendezvous messages. It is slow on
// purpose: tests of layouts run under it.
#include "support/strict_collectives.hpp"

#include <cstring>
#include <numeric>
#include <span>

#include "comm/mpi/host_work.hpp"
#include "core/error.hpp"
#include "support/roll_call.hpp"
#include "support/strict_work.hpp"

namespace zea {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kMessageHeaderTag = 2;
constexpr int kStrictMessageTag = 3;

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

CallHeader make_header(CallKind kind, int64_t count, DType dtype) {
  CallHeader header;
  header.kind = kind;
  header.count = count;
  header.dtype = static_cast<int32_t>(dtype);
  return header;
}

bool has_counts(CallKind kind) {
  return kind != CallKind::AllReduce && kind != CallKind::Broadcast && kind != CallKind::Barrier;
}

bool has_root(CallKind kind) {
  return kind == CallKind::Broadcast || kind == CallKind::Gather;
}

/// Returns the fields that the ranks of a collective must agree on.
CallHeader header_of(const CollectiveCall& call) {
  CallHeader header = make_header(call.kind, call.count, call.dtype);
  if (call.kind == CallKind::AllReduce) header.op = static_cast<int32_t>(call.op);
  if (has_root(call.kind)) header.root = call.peer;
  if (call.kind == CallKind::AllToAll)
    header.count = 0;  // each rank has its own
  else
    header.counts_hash = hash_bytes(call.counts.data(), call.counts.size() * sizeof(int64_t));
  return header;
}

/// Bytes of a call's buffers that a rank sends and receives; those in place are received.
struct CallBytes {
  size_t sent = 0, received = 0;
};

CallBytes bytes_of(const CollectiveCall& call, int rank) {
  const size_t width = element_bytes(call.dtype);
  const size_t all = call.count * width;
  const size_t own = call.counts.empty() ? 0 : call.counts[rank] * width;
  const bool is_root = rank == call.peer;
  switch (call.kind) {
    case CallKind::AllReduce:
    case CallKind::Recv:
      return {0, all};
    case CallKind::AllGather:
      return {own, all};
    case CallKind::ReduceScatter:
      return {all, own};
    case CallKind::AllToAll:
      return {all, total(call.receive_counts) * width};
    case CallKind::Broadcast:
      return is_root ? CallBytes{all, 0} : CallBytes{0, all};
    case CallKind::Gather:
      return {own, is_root ? all : 0};
    case CallKind::Send:
      return {all, 0};
    case CallKind::Exchange:
    case CallKind::Barrier:
      return {};
  }
  throw InternalError("unknown kind of call");
}

void check_apart(const CollectiveCall& call, const CallBytes& bytes) {
  const char* send = static_cast<const char*>(call.send);
  const char* receive = static_cast<const char*>(call.receive);
  if (bytes.sent > 0 && bytes.received > 0 && send < receive + bytes.received &&
      receive < send + bytes.sent)
    throw CommError("the buffers sent and received of " +
                    describe(make_header(call.kind, 0, DType::UInt8)) + " overlap");
}

class StrictCollectives : public Collectives {
 public:
  StrictCollectives(const Communicator& communicator, std::chrono::milliseconds patience)
      : communicator_(communicator.duplicate(communicator.name())),
        inner_(make_mpi_collectives(communicator)),
        state_(std::make_shared<StrictState>(StrictState{communicator.progress(), patience, {}})),
        roll_call_(communicator_, patience) {}

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  const char* name() const override { return "strict"; }

  Pending start(const CollectiveCall& call) override;

 private:
  Pending start_collective(const CollectiveCall& call);
  Pending start_send(const CollectiveCall& call);
  Pending start_recv(const CollectiveCall& call);
  /// The roll call before a collective.
  std::unique_ptr<StrictWork> meet(const CollectiveCall& call);
  std::unique_ptr<StrictWork> new_work(const CollectiveCall& message);
  void check_new_call();
  void check_counts(const Counts& counts) const;
  void check_root(int root) const;
  Channel channel(int tag) const { return {communicator_.handle(), tag, INT32_MAX, true}; }

  Communicator communicator_;
  std::unique_ptr<Collectives> inner_;
  std::shared_ptr<StrictState> state_;
  RollCall roll_call_;
  uint64_t sequence_ = 0;
};

void StrictCollectives::check_new_call() {
  if (state_->faults.empty()) return;
  const std::string first = state_->faults.front();
  state_->faults.clear();
  throw CommError(first + "; wait for every Pending before it dies");
}

void StrictCollectives::check_counts(const Counts& counts) const {
  if (static_cast<int>(counts.size()) != size())
    throw CommError(std::to_string(counts.size()) + " counts for the " + std::to_string(size()) +
                    " ranks of communicator " + communicator_.name());
  for (int64_t count : counts)
    if (count < 0) throw CommError("a count of " + std::to_string(count) + " elements");
}

void StrictCollectives::check_root(int root) const {
  if (root < 0 || root >= size())
    throw CommError("rank " + std::to_string(root) + " is not one of the " +
                    std::to_string(size()) + " ranks of communicator " + communicator_.name());
}

Pending StrictCollectives::start(const CollectiveCall& call) {
  if (call.kind == CallKind::Send) return start_send(call);
  if (call.kind == CallKind::Recv) return start_recv(call);
  if (call.kind == CallKind::Exchange) return start_apart(call);
  return start_collective(call);
}

std::unique_ptr<StrictWork> StrictCollectives::meet(const CollectiveCall& call) {
  const bool is_all_to_all = call.kind == CallKind::AllToAll;
  if (has_counts(call.kind)) check_counts(call.counts);
  if (is_all_to_all) check_counts(call.receive_counts);
  if (has_root(call.kind)) check_root(call.peer);
  check_new_call();
  CallHeader header = header_of(call);
  header.sequence = ++sequence_;
  std::vector<CallHeader> to_rank(size(), header);
  for (int r = 0; r < size() && is_all_to_all; ++r) {
    to_rank[r].sends_to_peer = call.counts[r];
    to_rank[r].expects_from_peer = call.receive_counts[r];
  }
  roll_call_.check(to_rank);
  return std::make_unique<StrictWork>(describe(header) + " on " + communicator_.name(), state_);
}

Pending StrictCollectives::start_collective(const CollectiveCall& call) {
  auto work = meet(call);
  if (call.kind == CallKind::Barrier) return Pending(std::move(work));  // the roll call was one
  const CallBytes bytes = bytes_of(call, rank());
  const bool in_place = call.kind == CallKind::AllGather &&
                        call.send == static_cast<char*>(call.receive) +
                                         total({call.counts.data(), static_cast<size_t>(rank())}) *
                                             element_bytes(call.dtype);
  if (!in_place) check_apart(call, bytes);
  CollectiveCall hidden = call;
  if (bytes.received > 0)
    hidden.receive = work->hide(call.receive, bytes.received, call.send, in_place ? bytes.sent : 0);
  work->watch(call.kind == CallKind::Broadcast ? call.receive : call.send, bytes.sent);
  work->start(inner_->start(hidden));
  return Pending(std::move(work));
}

std::unique_ptr<StrictWork> StrictCollectives::new_work(const CollectiveCall& message) {
  check_new_call();
  check_root(message.peer);
  return std::make_unique<StrictWork>(
      "a message of " + std::to_string(message.count) + " " + dtype_name(message.dtype) +
          " between rank " + std::to_string(rank()) + " and rank " + std::to_string(message.peer) +
          " of " + communicator_.name(),
      state_);
}

Pending StrictCollectives::start_send(const CollectiveCall& call) {
  const CallHeader header = make_header(call.kind, call.count, call.dtype);
  auto work = new_work(call);
  work->watch(call.send, call.count * element_bytes(call.dtype));
  auto messages = std::make_unique<HostWork>(communicator_.progress());
  std::byte* travelling = messages->scratch(sizeof header);
  std::memcpy(travelling, &header, sizeof header);
  post_send(*messages, channel(kMessageHeaderTag), travelling, sizeof header, DType::UInt8,
            call.peer);
  post_send(*messages, channel(kStrictMessageTag), call.send, call.count, call.dtype, call.peer);
  work->start(Pending(std::move(messages)));
  return Pending(std::move(work));
}

Pending StrictCollectives::start_recv(const CollectiveCall& call) {
  const CallHeader expected = make_header(CallKind::Send, call.count, call.dtype);
  const int source = call.peer;
  auto work = new_work(call);
  void* hidden = work->hide(call.receive, call.count * element_bytes(call.dtype));
  // Both are posted at once, so that messages match in the order of the calls.
  auto heading = std::make_unique<HostWork>(communicator_.progress());
  std::byte* arriving = heading->scratch(sizeof expected);
  post_receive(*heading, channel(kMessageHeaderTag), arriving, sizeof expected, DType::UInt8,
               source);
  heading->then([=, name = communicator_.name(), own = rank()](HostWork&) {
    CallHeader sent;
    std::memcpy(&sent, arriving, sizeof sent);
    if (!sent.same_call(expected))
      throw CommError("rank " + std::to_string(source) + " of " + name + " sends " +
                      describe(sent) + " where rank " + std::to_string(own) + " expects " +
                      describe(expected));
  });
  auto body = std::make_unique<HostWork>(communicator_.progress());
  post_receive(*body, channel(kStrictMessageTag), hidden, call.count, call.dtype, source);
  work->start(Pending(std::move(heading)));
  work->start(Pending(std::move(body)));
  return Pending(std::move(work));
}

}  // namespace

std::unique_ptr<Collectives> make_strict_collectives(const Communicator& communicator) {
  return make_strict_collectives_within(communicator, kPatience);
}

std::unique_ptr<Collectives> make_strict_collectives_within(const Communicator& communicator,
                                                            std::chrono::milliseconds patience) {
  return std::make_unique<StrictCollectives>(communicator, patience);
}

}  // namespace zea
