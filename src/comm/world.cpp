// SPDX-License-Identifier: Apache-2.0
#include "zea/comm/world.hpp"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>

namespace zea {
namespace {

/// A communicator that is only looked at: its size, this rank's place in it, and of each rank of
/// the world the lowest rank on its node.
void measure_node(const Communicator& world, int& local_rank, int& local_size,
                  std::vector<int>& node_of_rank) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(world.handle(), MPI_COMM_TYPE_SHARED, world.rank(), MPI_INFO_NULL, &node),
      "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(node, &local_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(node, &local_size), "MPI_Comm_size");
  int lowest = world.rank();
  check_mpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast");
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  node_of_rank.resize(world.size());
  check_mpi(MPI_Allgather(&lowest, 1, MPI_INT, node_of_rank.data(), 1, MPI_INT, world.handle()),
            "MPI_Allgather");
}

}  // namespace

World::World(int* argc, char*** argv) {
  constexpr int kKeepUsersChoice = 0;
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", kKeepUsersChoice);
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", kKeepUsersChoice);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  world_.emplace(Communicator::duplicate(MPI_COMM_WORLD, "world"));
  measure_node(*world_, local_rank_, local_size_, node_of_rank_);
}

World::~World() {
  if (std::uncaught_exceptions() > 0) return;
  world_.reset();
  MPI_Finalize();
}

bool World::meets_within(double seconds) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(world_->handle(), &request) != MPI_SUCCESS) return false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int done = 0;
  while (std::chrono::steady_clock::now() < deadline) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void World::abort(int code) const {
  MPI_Abort(MPI_COMM_WORLD, code);
}

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string all = text;  // some count its end as a part of it
  return all.substr(0, all.find('\n'));
}

}  // namespace zea
