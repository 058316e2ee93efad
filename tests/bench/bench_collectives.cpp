// SPDX-License-Identifier: Apache-2.0
// Times collectives under mpirun, one line of standard input at a time, so that
// bench_collectives.py can take turns between this and others: "<collective> <dtype> <bytes> <way>
// <calls>" is answered by the seconds of one call.
#include <mpi.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "comm/communicator.hpp"
#include "comm/world.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

constexpr size_t kLineBytes = 256;

struct Order {
  std::string collective;
  DType dtype = DType::Float32;
  int64_t bytes = 0;
  std::string way;
  int calls = 0;
};

/// The next line of rank 0 on all ranks; waits without using a core. False at the end.
bool next_order(const Communicator& world, Order& order) {
  char line[kLineBytes] = {};
  std::string text;
  if (world.rank() == 0 && std::getline(std::cin, text))
    std::memcpy(line, text.data(), std::min(text.size(), kLineBytes - 1));
  MPI_Request request;
  check_mpi(MPI_Ibcast(line, kLineBytes, MPI_CHAR, 0, world.handle(), &request), "MPI_Ibcast");
  for (int done = 0; !done; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (line[0] == '\0') return false;
  std::string dtype;
  std::istringstream words(line);
  words >> order.collective >> dtype >> order.bytes >> order.way >> order.calls;
  order.dtype = dtype_from_name(dtype);
  return true;
}

/// Buffers of one order, and a call of it.
class Runner {
 public:
  Runner(const Communicator& world, Collectives& collectives, Order order)
      : world_(world), collectives_(collectives), order_(std::move(order)) {
    const int64_t width = static_cast<int64_t>(element_bytes(order_.dtype));
    share_ = order_.bytes / width / world.size();
    whole_ = buffer(share_ * world.size() * width);
    part_ = buffer((order_.collective == "all_to_all" ? world.size() : 1) * share_ * width);
  }

  /// Seconds of a call, the mean over all calls of the order.
  double run() {
    for (int warm = 0; warm < 2; ++warm) call();
    check_mpi(MPI_Barrier(world_.handle()), "MPI_Barrier");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < order_.calls; ++i) call();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return taken.count() / order_.calls;
  }

 private:
  std::shared_ptr<void> buffer(int64_t bytes) {
    if (order_.way == "node_allocated") return collectives_.allocate(bytes);
    return collectives_.Collectives::allocate(bytes);
  }

  void call() {
    if (order_.way == "MPI") return call_mpi();
    const Counts counts(world_.size(), share_);
    if (order_.collective == "all_reduce")
      collectives_.all_reduce(whole_.get(), share_ * world_.size(), order_.dtype, ReduceOp::Sum)
          .wait();
    else if (order_.collective == "reduce_scatter")
      collectives_.reduce_scatter(whole_.get(), part_.get(), counts, order_.dtype).wait();
    else if (order_.collective == "all_to_all")
      collectives_.all_to_all(whole_.get(), counts, part_.get(), counts, order_.dtype).wait();
    else
      collectives_.all_gather(part_.get(), whole_.get(), counts, order_.dtype).wait();
  }

  void call_mpi() {
    const int count = static_cast<int>(share_);
    if (order_.dtype != DType::Float32) throw CommError("MPI knows only float32 here");
    if (order_.collective == "all_reduce")
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, whole_.get(), count * world_.size(), MPI_FLOAT, MPI_SUM,
                              world_.handle()),
                "MPI_Allreduce");
    else if (order_.collective == "reduce_scatter")
      check_mpi(MPI_Reduce_scatter_block(whole_.get(), part_.get(), count, MPI_FLOAT, MPI_SUM,
                                         world_.handle()),
                "MPI_Reduce_scatter_block");
    else if (order_.collective == "all_to_all")
      check_mpi(MPI_Alltoall(whole_.get(), count, MPI_FLOAT, part_.get(), count, MPI_FLOAT,
                             world_.handle()),
                "MPI_Alltoall");
    else
      check_mpi(MPI_Allgather(part_.get(), count, MPI_FLOAT, whole_.get(), count, MPI_FLOAT,
                              world_.handle()),
                "MPI_Allgather");
  }

  const Communicator& world_;
  Collectives& collectives_;
  Order order_;
  int64_t share_ = 0;
  std::shared_ptr<void> whole_;
  std::shared_ptr<void> part_;
};

void serve(const Communicator& world) {
  const auto mpi = make_mpi_collectives(world);
  const auto node = make_host_collectives(world);
  Order order;
  while (next_order(world, order)) {
    const bool wants_node = order.way.starts_with("node");
    if (wants_node && node->name() != std::string("node"))
      throw CommError("no shared memory: " + node->note());
    const double seconds = Runner(world, wants_node ? *node : *mpi, order).run();
    if (world.rank() == 0) std::cout << seconds << std::endl;
  }
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::World world(&argc, &argv);
  zea::serve(world.communicator());
}
