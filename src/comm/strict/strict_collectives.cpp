// SPDX-License-Identifier: Apache-2.0
// MPI collectives with the contract enforced: a roll call before each, hidden receives, watched
// sends, rendezvous messages. It is slow on purpose: tests of layouts run under it.
#include <cstring>
#include <numeric>

#include "mpi/message.hpp"
#include "strict/roll_call.hpp"
#include "strict/strict_work.hpp"
#include "zea/comm/communicator.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kMessageHeaderTag = 2;
constexpr int kStrictMessageTag = 3;

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
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

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override;
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override;
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override;
  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override;
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override;
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override;
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override;
  Pending send(const void* data, int64_t count, DType dtype, int destination) override;
  Pending recv(void* data, int64_t count, DType dtype, int source) override;
  void barrier() override;

 private:
  std::unique_ptr<StrictWork> meet(CallHeader header);
  std::unique_ptr<StrictWork> meet(CallKind kind, const Counts& counts, DType dtype, int root = -1);
  std::unique_ptr<StrictWork> new_work(const CallHeader& header, int peer);
  void check_new_call();
  void check_counts(const Counts& counts) const;
  void check_root(int root) const;
  void check_apart(const void* send, size_t send_bytes, const void* receive, size_t receive_bytes,
                   CallKind kind) const;
  Channel channel(int tag) const { return {communicator_.handle(), tag, INT32_MAX, true}; }
  size_t place_of(int rank, const Counts& counts, DType dtype) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}) *
           element_bytes(dtype);
  }

  Communicator communicator_;
  std::unique_ptr<Collectives> inner_;
  std::shared_ptr<StrictState> state_;
  RollCall roll_call_;
  uint64_t sequence_ = 0;
};

CallHeader make_header(CallKind kind, int64_t count, DType dtype) {
  CallHeader header;
  header.kind = kind;
  header.count = count;
  header.dtype = static_cast<int32_t>(dtype);
  return header;
}

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

void StrictCollectives::check_apart(const void* send, size_t send_bytes, const void* receive,
                                    size_t receive_bytes, CallKind kind) const {
  const char* s = static_cast<const char*>(send);
  const char* r = static_cast<const char*>(receive);
  if (send_bytes > 0 && receive_bytes > 0 && s < r + receive_bytes && r < s + send_bytes)
    throw CommError("the buffers sent and received of " +
                    describe(make_header(kind, 0, DType::UInt8)) + " overlap");
}

std::unique_ptr<StrictWork> StrictCollectives::meet(CallHeader header) {
  check_new_call();
  header.sequence = ++sequence_;
  roll_call_.check(std::vector<CallHeader>(size(), header));
  return std::make_unique<StrictWork>(describe(header) + " on " + communicator_.name(), state_);
}

std::unique_ptr<StrictWork> StrictCollectives::meet(CallKind kind, const Counts& counts,
                                                    DType dtype, int root) {
  check_counts(counts);
  if (root >= 0) check_root(root);
  CallHeader header = make_header(kind, total(counts), dtype);
  header.counts_hash = hash_bytes(counts.data(), counts.size() * sizeof(int64_t));
  header.root = root;
  return meet(header);
}

Pending StrictCollectives::all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) {
  CallHeader header = make_header(CallKind::AllReduce, count, dtype);
  header.op = static_cast<int32_t>(op);
  auto work = meet(header);
  void* hidden = work->hide(data, count * element_bytes(dtype));
  work->start(inner_->all_reduce(hidden, count, dtype, op));
  return Pending(std::move(work));
}

Pending StrictCollectives::all_gather(const void* send, void* receive, const Counts& counts,
                                      DType dtype) {
  auto work = meet(CallKind::AllGather, counts, dtype);
  const size_t own_bytes = counts[rank()] * element_bytes(dtype);
  const size_t all_bytes = total(counts) * element_bytes(dtype);
  const bool in_place = send == static_cast<char*>(receive) + place_of(rank(), counts, dtype);
  if (!in_place) check_apart(send, own_bytes, receive, all_bytes, CallKind::AllGather);
  void* hidden = work->hide(receive, all_bytes, send, in_place ? own_bytes : 0);
  work->watch(send, own_bytes);
  work->start(inner_->all_gather(send, hidden, counts, dtype));
  return Pending(std::move(work));
}

Pending StrictCollectives::reduce_scatter(const void* send, void* receive, const Counts& counts,
                                          DType dtype) {
  auto work = meet(CallKind::ReduceScatter, counts, dtype);
  const size_t all_bytes = total(counts) * element_bytes(dtype);
  const size_t own_bytes = counts[rank()] * element_bytes(dtype);
  check_apart(send, all_bytes, receive, own_bytes, CallKind::ReduceScatter);
  work->watch(send, all_bytes);
  void* hidden = work->hide(receive, own_bytes);
  work->start(inner_->reduce_scatter(send, hidden, counts, dtype));
  return Pending(std::move(work));
}

Pending StrictCollectives::all_to_all(const void* send, const Counts& send_counts, void* receive,
                                      const Counts& receive_counts, DType dtype) {
  check_new_call();
  check_counts(send_counts);
  check_counts(receive_counts);
  CallHeader header = make_header(CallKind::AllToAll, 0, dtype);
  header.sequence = ++sequence_;
  std::vector<CallHeader> to_rank(size(), header);
  for (int r = 0; r < size(); ++r) {
    to_rank[r].sends_to_peer = send_counts[r];
    to_rank[r].expects_from_peer = receive_counts[r];
  }
  roll_call_.check(to_rank);
  auto work =
      std::make_unique<StrictWork>(describe(header) + " on " + communicator_.name(), state_);
  const size_t send_bytes = total(send_counts) * element_bytes(dtype);
  const size_t receive_bytes = total(receive_counts) * element_bytes(dtype);
  check_apart(send, send_bytes, receive, receive_bytes, CallKind::AllToAll);
  work->watch(send, send_bytes);
  void* hidden = work->hide(receive, receive_bytes);
  work->start(inner_->all_to_all(send, send_counts, hidden, receive_counts, dtype));
  return Pending(std::move(work));
}

Pending StrictCollectives::broadcast(void* data, int64_t count, DType dtype, int root) {
  check_root(root);
  CallHeader header = make_header(CallKind::Broadcast, count, dtype);
  header.root = root;
  auto work = meet(header);
  const size_t bytes = count * element_bytes(dtype);
  if (rank() == root) work->watch(data, bytes);
  void* place = rank() == root ? data : work->hide(data, bytes);
  work->start(inner_->broadcast(place, count, dtype, root));
  return Pending(std::move(work));
}

Pending StrictCollectives::gather(const void* send, void* receive, const Counts& counts,
                                  DType dtype, int root) {
  auto work = meet(CallKind::Gather, counts, dtype, root);
  const size_t own_bytes = counts[rank()] * element_bytes(dtype);
  const size_t all_bytes = rank() == root ? total(counts) * element_bytes(dtype) : 0;
  check_apart(send, own_bytes, receive, all_bytes, CallKind::Gather);
  work->watch(send, own_bytes);
  void* hidden = work->hide(receive, all_bytes);
  work->start(inner_->gather(send, hidden, counts, dtype, root));
  return Pending(std::move(work));
}

Pending StrictCollectives::scatter(const void* send, void* receive, const Counts& counts,
                                   DType dtype, int root) {
  auto work = meet(CallKind::Scatter, counts, dtype, root);
  const size_t all_bytes = rank() == root ? total(counts) * element_bytes(dtype) : 0;
  const size_t own_bytes = counts[rank()] * element_bytes(dtype);
  check_apart(send, all_bytes, receive, own_bytes, CallKind::Scatter);
  work->watch(send, all_bytes);
  void* hidden = work->hide(receive, own_bytes);
  work->start(inner_->scatter(send, hidden, counts, dtype, root));
  return Pending(std::move(work));
}

std::unique_ptr<StrictWork> StrictCollectives::new_work(const CallHeader& header, int peer) {
  check_new_call();
  check_root(peer);
  return std::make_unique<StrictWork>(std::string("a message of ") + std::to_string(header.count) +
                                          " " + dtype_name(static_cast<DType>(header.dtype)) +
                                          " between rank " + std::to_string(rank()) + " and rank " +
                                          std::to_string(peer) + " of " + communicator_.name(),
                                      state_);
}

Pending StrictCollectives::send(const void* data, int64_t count, DType dtype, int destination) {
  const CallHeader header = make_header(CallKind::Message, count, dtype);
  auto work = new_work(header, destination);
  work->watch(data, count * element_bytes(dtype));
  auto messages = std::make_unique<HostWork>(communicator_.progress());
  std::byte* travelling = messages->scratch(sizeof header);
  std::memcpy(travelling, &header, sizeof header);
  post_send(*messages, channel(kMessageHeaderTag), travelling, sizeof header, DType::UInt8,
            destination);
  post_send(*messages, channel(kStrictMessageTag), data, count, dtype, destination);
  work->start(Pending(std::move(messages)));
  return Pending(std::move(work));
}

Pending StrictCollectives::recv(void* data, int64_t count, DType dtype, int source) {
  const CallHeader expected = make_header(CallKind::Message, count, dtype);
  auto work = new_work(expected, source);
  void* hidden = work->hide(data, count * element_bytes(dtype));
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
  post_receive(*body, channel(kStrictMessageTag), hidden, count, dtype, source);
  work->start(Pending(std::move(heading)));
  work->start(Pending(std::move(body)));
  return Pending(std::move(work));
}

void StrictCollectives::barrier() {
  const auto work = meet(make_header(CallKind::Barrier, 0, DType::UInt8));
  work->wait();
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
