// SPDX-License-Identifier: Apache-2.0
// The main of tests under mpirun: rank 0 prints, every rank reports its own failures with its rank,
// and all return the worst code. Ranks meet after each test; one that failed and is not joined ends
// the job, so nothing hangs on it.
#include "support/mpi_main.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "support/chosen_tests.hpp"

namespace zea::testing {
namespace {

constexpr auto kPatienceAfterFailure = std::chrono::seconds(10);

World* current_world = nullptr;

class RankReporter : public ::testing::EmptyTestEventListener {
 public:
  explicit RankReporter(Communicator communicator) : communicator_(std::move(communicator)) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed() || communicator_.rank() == 0) return;
    std::fprintf(stderr, "[rank %d] %s:%d: %s\n", communicator_.rank(),
                 result.file_name() ? result.file_name() : "?", result.line_number(),
                 result.message());
  }

  void OnTestEnd(const ::testing::TestInfo& info) override {
    MPI_Request request;
    check_mpi(MPI_Ibarrier(communicator_.handle(), &request), "MPI_Ibarrier");
    const auto start = std::chrono::steady_clock::now();
    for (int complete = 0; !complete;) {
      check_mpi(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
      const bool is_late = std::chrono::steady_clock::now() - start > kPatienceAfterFailure;
      if (!complete && info.result()->Failed() && is_late) world().abort(kFailed);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  Communicator communicator_;
};

int run_tests() {
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  auto* reporter = new RankReporter(world().communicator());
  listeners.Append(reporter);
  const int code = run_chosen_tests();
  delete listeners.Release(reporter);  // before MPI ends
  return code;
}

/// Failed where any rank failed, else skipped where all skipped.
int worst(int code) {
  const int mine[2] = {code == kFailed, code != kSkipped};
  int all[2] = {};
  check_mpi(MPI_Allreduce(mine, all, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  if (all[0]) return kFailed;
  return all[1] ? 0 : kSkipped;
}

}  // namespace

const World& world() {
  return *current_world;
}

Communicator first_ranks(int size) {
  const Communicator all = world().communicator();
  return all.split(all.rank() < size ? 0 : Communicator::kNoColor, "first ranks");
}

}  // namespace zea::testing

int main(int argc, char** argv) {
  zea::testing::choose_tests(argc, argv);
  std::optional<zea::World> world(std::in_place, &argc, &argv);
  zea::testing::current_world = &*world;
  const int code = zea::testing::worst(zea::testing::run_tests());
  world.reset();
  zea::testing::leave(code);
}
