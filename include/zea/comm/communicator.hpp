// SPDX-License-Identifier: Apache-2.0
// A communicator that is owned: freed by its destructor, its errors returned as CommError and never fatal inside MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "zea/comm/collectives.hpp"

namespace zea {

class Communicator {
 public:
  /// A duplicate of `parent`. Collective over it.
  static Communicator duplicate(MPI_Comm parent, const std::string& name);
  /// Ranks of this communicator with equal `color` form one, in order of rank here. Collective.
  Communicator split(int color, const std::string& name) const;

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  MPI_Comm handle() const { return handle_; }

 private:
  Communicator(MPI_Comm owned, std::string name);
  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  std::string name_;
};

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Host collectives over MPI. The communicator must outlive them.
std::unique_ptr<Collectives> make_mpi_collectives(const Communicator& communicator);

/// MPI with the contract enforced, for tests: every send is a rendezvous, buffers being received hold NaN until waited
/// on, sent buffers are checked unchanged, and ranks that call different collectives, counts or orders fail by name.
std::unique_ptr<Collectives> make_strict_collectives(const Communicator& communicator);

/// Gives the CUDA stream (cudaStream_t) that computes at the time of the call.
using ComputeStream = void* (*)();

/// Device collectives over NCCL on a stream of their own; the id travels over the communicator. Throws CommError
/// when this build has no NCCL.
std::unique_ptr<Collectives> make_nccl_collectives(const Communicator& communicator,
                                                   ComputeStream compute_stream);

/// Whether this build has NCCL.
bool has_nccl();

}  // namespace zea
