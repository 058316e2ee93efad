// SPDX-License-Identifier: Apache-2.0
// The interface of communication, on host memory (MPI) or device memory (NCCL). All calls are
// collective over the communicator and are made by one thread per rank, in the same order on every
// rank; pending results may be waited for in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"

namespace zea {

enum class ReduceOp { Sum, Max, Min };

/// A communication under way. The destructor waits, so no buffer dies under it; while an exception
/// unwinds the stack it gives the communication up instead, since the peers may never come.
class Pending {
 public:
  class Work {
   public:
    /// Finishes the communication, or gives it up while an exception unwinds.
    virtual ~Work() = default;
    /// Host: returns when buffers may be used. Device: orders the compute stream after the
    /// communication.
    virtual void wait() = 0;
    /// Lets the communication progress; true when it has finished and buffers may be used. May be
    /// asked after wait(), too, which on a device ends before it has finished. Captured for a graph
    /// (CapturedGraph) it has finished when wait() has been called.
    virtual bool test() = 0;
  };

  Pending() = default;
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void wait();
  bool test();
  /// For whoever stands before it; null where nothing is under way.
  std::unique_ptr<Work> take() { return std::move(work_); }

 private:
  std::unique_ptr<Work> work_;
};

/// Counts are elements per rank; displacements are the running sums of counts (packed, in rank
/// order).
using Counts = std::vector<int64_t>;

/// One point-to-point message of an exchange; `data` is only read where it is sent.
struct Message {
  void* data;
  int64_t count;
  DType dtype;
  int peer;
};

enum class CallKind {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast,
  Gather,
  Send,
  Recv,
  Exchange,
  Barrier
};

/// As the methods of Collectives are called: "all_reduce", ..., "barrier".
const char* call_name(CallKind kind);

/// A call of a communicator, as a value. Fields that a kind does not need keep their
/// defaults.
struct CollectiveCall {
  CallKind kind;
  const void* send = nullptr;  ///< only read
  void* receive = nullptr;  ///< written; all_reduce and broadcast, which are in place, read it, too
  int64_t count = 0;        ///< elements in all; of an exchange, those sent
  Counts counts{};          ///< of each rank, where they may differ; all_to_all: sent to each
  Counts receive_counts{};  ///< all_to_all
  DType dtype = DType::UInt8;
  ReduceOp op = ReduceOp::Sum;               ///< all_reduce
  int peer = -1;                             ///< root, destination or source
  std::vector<Message> sends{}, receives{};  ///< exchange
};

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "node", "two-level" or "nccl"; tests have others.
  virtual const char* name() const = 0;
  /// Whether calls run one after the other on a stream of a device, so that a call waits for all
  /// that were started before it, although they may have nothing to do with it.
  virtual bool is_streamed() const { return false; }
  /// One sentence for the log where ranks share a node but could not meet in shared memory, equal
  /// on all ranks; empty where there is nothing to say.
  virtual std::string note() const { return {}; }
  /// Collective, before any message: this rank will send to some ranks and receive of others, and
  /// they say so, too. NCCL connects a pair at its first message, for which the host waits until
  /// the peer comes there, too; behind this it does not. Other backends have nothing to connect.
  virtual void connect(const std::vector<int>& /*receivers*/, const std::vector<int>& /*senders*/) {
  }
  /// Gives up what is under way, for good: nothing is called afterwards. For while an exception
  /// unwinds, when peers may never come.
  virtual void give_up() {}
  /// Every call below goes through this. Backends start it, wrappers look at it or change it.
  virtual Pending start(const CollectiveCall& call) = 0;

  /// In place. bf16 and fp16 sums are taken in fp32, in rank order (two levels: node by node; NCCL:
  /// in its own way). All ranks get the same bits.
  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op);
  /// Rank r contributes counts[r] elements; every rank receives all, packed. `send` may lie inside
  /// `receive` at its place.
  Pending all_gather(const void* send, void* receive, Counts counts, DType dtype);
  /// Sums `send` (sum of counts elements) over ranks; rank r receives its counts[r] elements.
  /// Buffers do not overlap.
  Pending reduce_scatter(const void* send, void* receive, Counts counts, DType dtype);
  Pending all_to_all(const void* send, Counts send_counts, void* receive, Counts receive_counts,
                     DType dtype);
  Pending broadcast(void* data, int64_t count, DType dtype, int root);
  /// Root receives all ranks' elements, packed in rank order; on other ranks `receive` is ignored.
  Pending gather(const void* send, void* receive, Counts counts, DType dtype, int root);
  Pending send(const void* data, int64_t count, DType dtype, int destination);
  Pending recv(void* data, int64_t count, DType dtype, int source);
  /// Sends and receives that go on together. On a device, opposite messages of a pair must be
  /// posted this way: two separate calls run one after the other on the stream of the communicator
  /// and would wait for each other.
  Pending exchange(std::vector<Message> sends, std::vector<Message> receives);
  /// Returns when every rank has entered it. Host only: it does not order device streams.
  void barrier();

  /// Zeroed memory for buffers of these collectives, aligned to a page. Where ranks share a node it
  /// lies where its peers can reach it in place, so that calls over it copy less; elsewhere it is
  /// ordinary memory. Collective; ranks may ask for different sizes. Freed with its last reference.
  virtual std::shared_ptr<void> allocate(int64_t bytes);

 protected:
  /// An exchange as messages of its own, receives first.
  Pending start_apart(const CollectiveCall& exchange);
};

/// Stands before other collectives, which outlive it: a wrapper says what it does in start().
class WrappedCollectives : public Collectives {
 public:
  explicit WrappedCollectives(Collectives& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const char* name() const override { return inner_.name(); }
  bool is_streamed() const override { return inner_.is_streamed(); }
  std::string note() const override { return inner_.note(); }
  void connect(const std::vector<int>& receivers, const std::vector<int>& senders) override {
    inner_.connect(receivers, senders);
  }
  void give_up() override { inner_.give_up(); }
  std::shared_ptr<void> allocate(int64_t bytes) override { return inner_.allocate(bytes); }

 protected:
  Collectives& inner_;
};

}  // namespace zea
