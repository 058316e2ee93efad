// SPDX-License-Identifier: Apache-2.0
#include "mpi/message.hpp"

#include <algorithm>
#include <limits>

#include "zea/comm/communicator.hpp"

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
