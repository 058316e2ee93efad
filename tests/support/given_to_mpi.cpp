// SPDX-License-Identifier: Apache-2.0
#include "support/given_to_mpi.hpp"

#include <mpi.h>

#include <set>

#include "layout/collective_volume.hpp"

namespace zea::testing {
namespace {

GivenToMpi given;
std::set<MPI_Comm> watched;
bool watches_duplicates = false;

int64_t bytes_of(int64_t count, MPI_Datatype type) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  return count * bytes;
}

void note_message(int count, MPI_Datatype type, int destination, MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  if (watched.contains(comm) && destination != rank) given.message_bytes += bytes_of(count, type);
}

}  // namespace

GivenToMpi given_to_mpi() {
  return given;
}

std::unique_ptr<Collectives> make_watched_collectives(const Communicator& communicator) {
  watches_duplicates = true;
  auto made = make_mpi_collectives(communicator);
  watches_duplicates = false;
  return made;
}

}  // namespace zea::testing

using namespace zea::testing;

extern "C" {

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  const int code = PMPI_Comm_dup(comm, made);
  if (watches_duplicates) watched.insert(*made);
  return code;
}

int MPI_Comm_free(MPI_Comm* comm) {
  watched.erase(*comm);
  return PMPI_Comm_free(comm);
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int destination, int tag,
              MPI_Comm comm, MPI_Request* request) {
  note_message(count, type, destination, comm);
  return PMPI_Isend(data, count, type, destination, tag, comm, request);
}

int MPI_Issend(const void* data, int count, MPI_Datatype type, int destination, int tag,
               MPI_Comm comm, MPI_Request* request) {
  note_message(count, type, destination, comm);
  return PMPI_Issend(data, count, type, destination, tag, comm, request);
}

int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  if (watched.contains(comm))
    given.tree_bytes += bytes_of(zea::sent_by_all_reduce(count, size, rank), type);
  return PMPI_Iallreduce(send, receive, count, type, op, comm, request);
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  int rank = 0, size = 0;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  if (watched.contains(comm))
    given.tree_bytes += bytes_of(zea::sent_by_broadcast(count, size, rank == root), type);
  return PMPI_Ibcast(data, count, type, root, comm, request);
}
}
