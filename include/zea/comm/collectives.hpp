// SPDX-License-Identifier: Apache-2.0
// The contract of communication: what the engine asks of a communicator, on host memory (MPI) or device memory (NCCL).
// All calls are collective over the communicator and are made by one thread per rank, in the same order on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zea/core/dtype.hpp"

namespace zea {

enum class ReduceOp { Sum, Max, Min };

/// A communication under way. The destructor waits; so no buffer dies under it.
class Pending {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    /// Host: returns when buffers may be used. Device: orders the compute stream after the communication.
    virtual void wait() = 0;
    /// Lets the communication progress; true when it has finished.
    virtual bool test() = 0;
  };

  Pending() = default;
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other);
  ~Pending();

  void wait();
  bool test();

 private:
  std::unique_ptr<Work> work_;
};

/// Counts are elements per rank; displacements are the running sums of counts (packed, in rank order).
using Counts = std::vector<int64_t>;

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "mpi", "nccl" or "strict".
  virtual const char* name() const = 0;

  /// In place. bf16 and fp16 sums are taken in fp32, in rank order.
  virtual Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) = 0;
  /// Rank r contributes counts[r] elements; every rank receives all, packed. `send` may lie inside `receive` at its place.
  virtual Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) = 0;
  /// Sums `send` (sum of counts elements) over ranks; rank r receives its counts[r] elements. Buffers do not overlap.
  virtual Pending reduce_scatter(const void* send, void* receive, const Counts& counts, DType dtype) = 0;
  virtual Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                             const Counts& receive_counts, DType dtype) = 0;
  virtual Pending broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  /// Root receives all ranks' elements, packed in rank order; on other ranks `receive` is ignored.
  virtual Pending gather(const void* send, void* receive, const Counts& counts, DType dtype, int root) = 0;
  virtual Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype, int root) = 0;
  virtual Pending send(const void* data, int64_t count, DType dtype, int destination) = 0;
  virtual Pending recv(void* data, int64_t count, DType dtype, int source) = 0;
  virtual void barrier() = 0;
};

}  // namespace zea
