// SPDX-License-Identifier: Apache-2.0
// Ranks whose calls of NCCL wait for each other: by the order of launches, for thread blocks, for a
// host. The stand-in names the ranks and calls of each circle, and finds none where there is none.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "core/error.hpp"
#include "device/device.hpp"
#include "device/meeting.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_waits {
namespace {

cudaStream_t computing = nullptr;

void* compute_stream() {
  return computing;
}

class Waits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
    cudaMalloc(&memory_, 64);
    cudaMemsetAsync(memory_, 0, 64, nullptr);
    cudaStreamSynchronize(nullptr);
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    device().launch_order().set_blocks(LaunchOrder::kUsualBlocks);
    set_patience(kUsualPatience);
    cudaFree(memory_);
  }

  std::unique_ptr<Collectives> make(const std::string& name) const {
    return make_nccl_collectives(world().communicator().duplicate(name), compute_stream);
  }
  static bool is_first() { return world().rank() == 0; }

  /// A message of one byte, the `number`-th, from the first rank to the second.
  Pending message(Collectives& ranks, int number) const {
    char* at = static_cast<char*>(memory_) + number;
    return is_first() ? ranks.send(at, 1, DType::UInt8, 1) : ranks.recv(at, 1, DType::UInt8, 0);
  }
  Pending sum(Collectives& ranks) const {
    return ranks.all_reduce(static_cast<char*>(memory_) + 16, 1, DType::Int32, ReduceOp::Sum);
  }

  /// Sends messages over links, then meets in a sum; the other rank receives them after the sum.
  /// Returns what this rank's device finds.
  std::string messages_around_a_sum(const std::vector<Collectives*>& links, Collectives& sums) {
    // NCCL's hosts connect a pair at its first message; links are connected before.
    for (Collectives* link : links) is_first() ? link->connect({1}, {}) : link->connect({}, {0});
    set_patience(std::chrono::seconds(1));
    std::vector<Pending> pendings;
    const auto send_all = [&] {
      for (size_t i = 0; i < links.size(); ++i)
        pendings.push_back(message(*links[i], static_cast<int>(i)));
    };
    if (is_first()) send_all();
    Pending summed = sum(sums);
    try {
      summed.wait();
      if (!is_first()) send_all();
      device().compute().drain();
      for (Pending& pending : pendings) pending.wait();
    } catch (const CommError&) {  // a rank has given up
    }
    device().compute().drain();
    world().communicator().duplicate("met");
    std::string found;
    for (const std::string& fault : device().take_faults()) found += fault + "\n";
    return found;
  }

  /// Expects that the first rank to give up, either, has named the circle of all of these.
  static void expect_circle(const std::string& found, const std::vector<std::string>& calls) {
    int64_t names_all = found.find("waits in a circle: ") != std::string::npos ? 1 : 0;
    for (const std::string& call : calls)
      if (found.find(call) == std::string::npos) names_all = 0;
    make_mpi_collectives(world().communicator())
        ->all_reduce(&names_all, 1, DType::Int64, ReduceOp::Sum)
        .wait();
    EXPECT_GT(names_all, 0) << found;
  }

  void* memory_ = nullptr;
};

/// The second message follows the first in its stream, and the sum begins after the second has.
TEST_F(Waits, InACircleByTheOrderOfLaunchesAreNamed) {
  const auto link = make("link"), sums = make("sums");
  expect_circle(messages_around_a_sum({link.get(), link.get()}, *sums),
                {"rank 0's ncclAllReduce #1 of sums to begin",
                 "rank 0's ncclSend #4 of link to begin", "rank 0's ncclSend #3 of link",
                 "rank 1's ncclRecv #3 of link to begin", "rank 1's ncclAllReduce #1 of sums"});
}

TEST_F(Waits, EndWhereNothingWaitsInItsStream) {
  const auto link = make("link"), other = make("other"), sums = make("sums");
  EXPECT_EQ(messages_around_a_sum({link.get()}, *sums), "");
  EXPECT_EQ(messages_around_a_sum({link.get(), other.get()}, *sums), "");
}

/// The messages fill the device, and leave no room for the sum that goes before their receipt.
TEST_F(Waits, InACircleForThreadBlocksAreNamed) {
  const auto link = make("link"), other = make("other"), sums = make("sums");
  device().launch_order().set_blocks(64);
  expect_circle(messages_around_a_sum({link.get(), other.get()}, *sums),
                {"rank 0's ncclAllReduce #1 of sums to begin", "rank 0's ncclSend #2 of ",
                 "rank 1's ncclRecv #2 of ", "rank 1's ncclAllReduce #1 of sums"});
}

/// The host of the other rank does something else.
TEST_F(Waits, ForAHostAreNamedAndNoCircle) {
  const auto sums = make("sums");
  set_patience(std::chrono::milliseconds(300));
  if (is_first()) {
    Pending summed = sum(*sums);
    device().compute().drain();
    try {
      while (!summed.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const CommError&) {
    }
    const std::vector<std::string> faults = device().take_faults();
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_NE(faults[0].find("; rank 0's ncclAllReduce #1 of sums, which waits for rank 1's host"),
              std::string::npos)
        << faults[0];
  }
  world().communicator().duplicate("met");
}

/// As a watchdog's thread does, whose current stream is another.
TEST_F(Waits, OfAStreamForACallThatIsForgottenAreThatOfTheLaunch) {
  const auto sums = make("sums");
  cudaStream_t one = nullptr, other = nullptr;
  cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  const auto count_faults = [&](cudaStream_t later) {
    computing = one;
    {
      const Pending forgotten = sum(*sums);
      computing = later;
    }
    cudaMemsetAsync(memory_, 0, 64, one);
    computing = nullptr;
    cudaStreamSynchronize(one);
    cudaStreamSynchronize(other);
    return device().take_faults().size();
  };
  EXPECT_EQ(count_faults(one), 0u);
  EXPECT_EQ(count_faults(other), 0u);
  for (cudaStream_t stream : {one, other}) cudaStreamDestroy(stream);
}

TEST_F(Waits, ForACommunicatorThatWasGivenUpFail) {
  const auto sums = make("sums");
  Pending summed = sum(*sums);
  while (!summed.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  sums->abort();
  EXPECT_THROW(summed.test(), CommError);
  device().compute().drain();
  world().communicator().duplicate("met");
  device().take_faults();
}

}  // namespace
}  // namespace zea::testing::test_waits
