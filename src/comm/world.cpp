// SPDX-License-Identifier: Apache-2.0
#include "comm/world.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
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

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void set_unless_chosen(const char* name, const char* value) {
  constexpr int kKeepUsersChoice = 0;
  setenv(name, value, kKeepUsersChoice);
}

/// As far as launchers say before MPI is initialised: mpirun, then srun. A rank that none started
/// is alone.
bool is_on_one_node() {
  const std::string ranks = environment("OMPI_COMM_WORLD_SIZE");
  if (!ranks.empty()) return ranks == environment("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string nodes = environment("SLURM_STEP_NUM_NODES");
  if (!nodes.empty()) return nodes == "1" && environment("SLURM_HET_SIZE").empty();
  return environment("PMIX_RANK").empty() && environment("PMI_RANK").empty();
}

/// Whether Open MPI's files of shared memory fit, 4 MiB of each rank and some; where they do not it
/// takes TCP.
bool has_room_for_shared_memory() {
  constexpr uint64_t kBytesOfRank = 8 << 20;
  const uint64_t ranks = std::strtoull(environment("OMPI_COMM_WORLD_SIZE").c_str(), nullptr, 10);
  struct rlimit files {};
  struct statvfs memory {};
  if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < kBytesOfRank) return false;
  return ranks < 2 || statvfs("/dev/shm", &memory) != 0 ||
         memory.f_bavail * memory.f_frsize >= ranks * kBytesOfRank;
}

/// Ranks of one node need no port that other users of the machine or the network reach: every port
/// of Open MPI 4 listens on all interfaces, and a few bytes from anybody stop the ranks.
void stay_on_node() {
  constexpr const char* kSharedMemory = OMPI_MAJOR_VERSION < 5 ? "self,vader" : "self,sm";
  if (has_room_for_shared_memory()) set_unless_chosen("OMPI_MCA_btl", kSharedMemory);
  if (environment("UCX_NET_DEVICES").empty()) set_unless_chosen("UCX_TLS", "^tcp");
  set_unless_chosen("NCCL_SOCKET_IFNAME", "lo");
}

}  // namespace

World::World(int* argc, char*** argv) {
  set_unless_chosen("OMPI_MCA_mpi_yield_when_idle", "1");
  set_unless_chosen("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  // A rank without a launcher would start a daemon, which listens for others.
  set_unless_chosen("OMPI_MCA_ess_singleton_isolated", "1");
  if (is_on_one_node()) stay_on_node();
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

bool World::barrier_within(double seconds) const {
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
