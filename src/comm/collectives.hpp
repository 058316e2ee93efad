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

/// A pending communication. The destructor waits, so that buffers outlive it; while an exception
/// unwinds the stack it gives the communication up instead, since the peers may never arrive.
class Pending {
 public:
  class Work {
   public:
    /// Finishes the communication, or gives it up while an exception unwinds.
    virtual ~Work() = default;
    /// Host: returns when buffers may be used. Device: orders the compute stream after the
    /// communication.
    virtual void wait() = 0;
    /// Advances the communication; returns whether it has finished and buffers may be used. May
    /// also be called after wait(), which on a device returns earlier. If captured for a graph
    /// (CapturedGraph), it has finished after wait().
    virtual bool test() = 0;
  };

  Pending() = default;
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void wait();
  bool test();
  /// Returns the work, for a wrapper; null if nothing is pending.
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

/// Returns the name of the method of Collectives: "all_reduce", ..., "barrier".
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
  /// earlier ones, even independent ones.
  virtual bool is_streamed() const { return false; }
  /// One sentence for the log if ranks share a node but cannot use shared memory, equal on all
  /// ranks; empty otherwise.
  virtual std::string note() const { return {}; }
  /// Announces, before any message, the ranks to which this rank will send and from which it will
  /// receive. NCCL connects a pair at its first message, for which the host waits for the peer;
  /// after this call it does not wait. Other backends have nothing to connect. Collective.
  virtual void connect(const std::vector<int>& /*receivers*/, const std::vector<int>& /*senders*/) {
  }
  /// Gives up pending communication while an exception unwinds, when peers may never arrive.
  /// Nothing may be called afterwards.
  virtual void abort() {}
  /// Starts a call; every method below uses it. Backends execute the call, wrappers inspect or
  /// change it.
  virtual Pending start(const CollectiveCall& call) = 0;

  /// In place. bf16 and fp16 sums are taken in fp32, in rank order (two levels: node by node; NCCL:
  /// in its own way). All ranks get the same bits.
  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op);
  /// Rank r contributes counts[r] elements; every rank receives all, packed. `send` may be this
  /// rank's range of `receive`.
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
  /// Sends and receives that progress together. On a device, opposite messages of a pair must be
  /// posted this way: two separate calls run one after the other on the stream of the communicator
  /// and would wait for each other.
  Pending exchange(std::vector<Message> sends, std::vector<Message> receives);
  /// Returns when every rank has entered it. Host only: it does not order device streams.
  void barrier();

  /// Allocates zeroed memory for buffers of these collectives, aligned to a page. If ranks share a
  /// node, their peers can reach it in place, so that calls on it copy less; otherwise it is
  /// ordinary memory. Collective; ranks may ask for different sizes. Freed with its last reference.
  virtual std::shared_ptr<void> allocate(int64_t bytes);

 protected:
  /// Starts an exchange as separate messages, receives first.
  Pending start_apart(const CollectiveCall& exchange);
};

/// Wraps other collectives, which outlive it; start() defines the wrapper's effect.
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
  void abort() override { inner_.abort(); }
  std::shared_ptr<void> allocate(int64_t bytes) override { return inner_.allocate(bytes); }

 protected:
  Collectives& inner_;
};

}  // namespace zea
