// SPDX-License-Identifier: Apache-2.0
// The contract of communication: what the engine asks of a communicator, on host memory (MPI) or
// device memory (NCCL). All calls are collective over the communicator and are made by one thread
// per rank, in the same order on every rank; the pending results may be waited on in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zea/core/dtype.hpp"

namespace zea {

enum class ReduceOp { Sum, Max, Min };

/// "sum", "max", "min".
const char* reduce_op_name(ReduceOp op);

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
    /// Lets the communication progress; true when it has finished and buffers may be used.
    virtual bool test() = 0;
  };

  Pending() = default;
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void wait();
  bool test();

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

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "node", "two-level", "nccl" or "strict".
  virtual const char* name() const = 0;
  /// One sentence for the log where ranks share a node but could not meet in shared memory, equal
  /// on all ranks; empty where there is nothing to say.
  virtual std::string note() const { return {}; }

  /// In place. bf16 and fp16 sums are taken in fp32, in rank order (two levels: node by node; NCCL:
  /// in its own way). All ranks get the same bits.
  virtual Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) = 0;
  /// Rank r contributes counts[r] elements; every rank receives all, packed. `send` may lie inside
  /// `receive` at its place.
  virtual Pending all_gather(const void* send, void* receive, const Counts& counts,
                             DType dtype) = 0;
  /// Sums `send` (sum of counts elements) over ranks; rank r receives its counts[r] elements.
  /// Buffers do not overlap.
  virtual Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                                 DType dtype) = 0;
  virtual Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                             const Counts& receive_counts, DType dtype) = 0;
  virtual Pending broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  /// Root receives all ranks' elements, packed in rank order; on other ranks `receive` is ignored.
  virtual Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                         int root) = 0;
  /// Root sends counts[r] elements of `send`, packed in rank order, to rank r; elsewhere `send` is
  /// ignored.
  virtual Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                          int root) = 0;
  virtual Pending send(const void* data, int64_t count, DType dtype, int destination) = 0;
  virtual Pending recv(void* data, int64_t count, DType dtype, int source) = 0;
  /// Sends and receives that go on together. On a device, opposite messages of a pair must be
  /// posted this way: two separate calls run one after the other on the stream of the communicator
  /// and would wait for each other.
  virtual Pending exchange(const std::vector<Message>& sends, const std::vector<Message>& receives);
  /// Zeroed memory for buffers of these collectives, aligned to a page. Where ranks share a node it
  /// lies where its peers can reach it in place, so that calls over it copy less; elsewhere it is
  /// ordinary memory. Collective; ranks may ask for different sizes. Freed with its last reference.
  virtual std::shared_ptr<void> allocate(int64_t bytes);
  /// Returns when every rank has entered it. Host only: it does not order device streams.
  virtual void barrier() = 0;
};

}  // namespace zea
