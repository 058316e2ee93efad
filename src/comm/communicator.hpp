// SPDX-License-Identifier: Apache-2.0
// An owned MPI communicator: freed by its destructor; errors are thrown as CommError and are never
// fatal inside MPI. Communicators derived from one another share their progress: waiting on one
// advances the work of all.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

class Progress;

class Communicator {
 public:
  /// The color of ranks that take part in a split and get no communicator from it.
  static constexpr int kNoColor = MPI_UNDEFINED;

  /// Returns a duplicate of `parent`, with separate progress. Collective over it.
  static Communicator duplicate(MPI_Comm parent, const std::string& name);
  /// Returns a duplicate that shares the progress. Collective.
  Communicator duplicate(const std::string& name) const;
  /// Ranks of this communicator with equal `color` form one, in order of rank here; kNoColor gives
  /// an empty one (size 0). Collective.
  Communicator split(int color, const std::string& name) const;
  /// Creates a communicator of some ranks of this one, ascending. Collective over these ranks only.
  Communicator of_ranks(const std::vector<int>& ranks, const std::string& name) const;
  /// The same ranks in the order of the `key` that each of them gives. Collective.
  Communicator reordered(int key, const std::string& name) const;

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  /// Frees the communicator, unless an exception unwinds (the job is then about to be aborted).
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  MPI_Comm handle() const { return handle_; }
  /// The lowest of the ranks that MPI says are on this rank's node, which names the node.
  /// Collective.
  int lowest_rank_of_node() const;
  const std::shared_ptr<Progress>& progress() const { return progress_; }

  /// Limits the SMs of this communicator's calls on a GPU, for small calls and for calls that wait
  /// long for their peers: a call holds its SMs from its start to its end. Duplicates and splits do
  /// not inherit the limit.
  void limit_sms() { limits_sms_ = true; }
  bool limits_sms() const { return limits_sms_; }

 private:
  Communicator(MPI_Comm owned, std::string name, std::shared_ptr<Progress> progress);
  void release() noexcept;

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  bool limits_sms_ = false;
  std::string name_;
  std::shared_ptr<Progress> progress_;
};

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Host collectives over a duplicate of the communicator. Making and destroying them is collective.
std::unique_ptr<Collectives> make_mpi_collectives(const Communicator& communicator);

/// The same with messages of at most `max_message_elements`, which must be equal on all ranks, so
/// that a small test can cover buffers of more than 2^31 elements.
std::unique_ptr<Collectives> make_chunked_mpi_collectives(const Communicator& communicator,
                                                          int64_t max_message_elements);

/// Options of collectives between ranks of a node.
struct NodeOptions {
  /// The number of this rank's node; by default MPI's answer.
  std::optional<int> node;
  /// The largest piece of shared memory that a rank requests.
  int64_t max_shared_bytes = std::numeric_limits<int64_t>::max();
};

/// Host collectives that use shared memory on a node: "node" if all ranks share one, "two-level"
/// (shared memory inside, MPI between) if all nodes have equally many ranks, in order. Otherwise,
/// and if the memory is not available (then note() says why), MPI. Collective.
std::unique_ptr<Collectives> make_host_collectives(const Communicator& communicator);
std::unique_ptr<Collectives> make_node_collectives(const Communicator& communicator,
                                                   const NodeOptions& options);

/// Gives the CUDA stream (cudaStream_t) that computes at the time of the call.
using ComputeStream = void* (*)();

/// Device collectives over NCCL on a separate stream; the id is exchanged over a duplicate of the
/// communicator. Uses the calling thread's current CUDA device. Throws CommError if this build has
/// no NCCL.
std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& communicator,
                                                   ComputeStream compute_stream);

/// Aborts all of them (Collectives::abort) at once, since aborting one NCCL communicator waits
/// for its work in streams, which may be queued after calls of others.
void abort_together(const std::vector<std::unique_ptr<Collectives>>& all);

/// Whether this build has NCCL.
bool has_nccl();

/// CUDA devices that this process can use; 0 without NCCL, a driver or a device.
int num_cuda_devices();

}  // namespace zea
