// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/host_work.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/communicator.hpp"

namespace zea {
namespace {

/// Calls visit(byte offset, bytes) for every piece.
template <class Visit>
void for_each_piece(const Channel& channel, int64_t count, DType dtype, Visit visit) {
  const int64_t bytes = static_cast<int64_t>(element_bytes(dtype));
  const int64_t step = piece_elements(channel, dtype);
  for (int64_t first = 0; first < count; first += step)
    visit(first * bytes, static_cast<int>(std::min(step, count - first) * bytes));
}

}  // namespace

HostWork::~HostWork() {
  leave();
  if (!done_ || failure_) abandon();
}

MPI_Request* HostWork::new_request() {
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

std::byte* HostWork::scratch(size_t bytes) {
  scratch_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  return scratch_.back().get();
}

bool HostWork::advance() noexcept {
  bool moved = false;
  try {
    while (!done_ && complete_requests()) {
      moved = true;
      if (steps_.empty()) {
        finish();
        break;
      }
      const Step step = std::move(steps_.front());
      steps_.pop_front();
      step(*this);
    }
  } catch (...) {
    finish(std::current_exception());
    moved = true;
  }
  return moved;
}

bool HostWork::complete_requests() {
  if (requests_.empty()) return true;
  int complete = 0;
  statuses_.resize(requests_.size());
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete,
                               statuses_.data());
  if (code == MPI_ERR_IN_STATUS)
    for (const MPI_Status& status : statuses_)
      if (status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR, "MPI_Testall");
  check_mpi(code, "MPI_Testall");
  if (complete) requests_.clear();
  return complete;
}

// The peers may never answer: receives are withdrawn where MPI can, and what MPI may still touch is
// left to it. This happens only on the way to the end of the job.
void HostWork::abandon() noexcept {
  for (MPI_Request& request : requests_)
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  for (auto& buffer : scratch_) buffer.release();
}

int64_t piece_elements(const Channel& channel, DType dtype) {
  const int64_t fits = std::numeric_limits<int>::max() / static_cast<int64_t>(element_bytes(dtype));
  return std::max<int64_t>(1, std::min(channel.max_elements, fits));
}

void post_send(HostWork& work, const Channel& channel, const void* data, int64_t count, DType dtype,
               int destination) {
  const char* from = static_cast<const char*>(data);
  for_each_piece(channel, count, dtype, [&](int64_t offset, int bytes) {
    const auto post = channel.rendezvous ? MPI_Issend : MPI_Isend;
    check_mpi(post(from + offset, bytes, MPI_BYTE, destination, channel.tag, channel.comm,
                   work.new_request()),
              channel.rendezvous ? "MPI_Issend" : "MPI_Isend");
  });
}

void post_receive(HostWork& work, const Channel& channel, void* data, int64_t count, DType dtype,
                  int source) {
  char* to = static_cast<char*>(data);
  for_each_piece(channel, count, dtype, [&](int64_t offset, int bytes) {
    check_mpi(MPI_Irecv(to + offset, bytes, MPI_BYTE, source, channel.tag, channel.comm,
                        work.new_request()),
              "MPI_Irecv");
  });
}

}  // namespace zea
