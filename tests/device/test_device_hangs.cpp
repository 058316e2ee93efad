// SPDX-License-Identifier: Apache-2.0
// A host that waits for its device does not know which communication the device waits for: the
// watchdog asks the device.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "train/train_step.hpp"
#include "watch/watchdog.hpp"

namespace zea::testing::test_device_hangs {
namespace {

constexpr double kDeadline = 1;
constexpr int64_t kCount = 8;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Messages of the watchdog.
class Said {
 public:
  void say(const std::string& message) {
    const std::lock_guard lock(mutex_);
    message_ = message;
  }
  std::string read() const {
    const std::lock_guard lock(mutex_);
    return message_;
  }
  std::string within(double seconds) const {
    const Stopwatch clock;
    while (read().empty() && clock.seconds() < seconds) sleep_seconds(0.01);
    return read();
  }

 private:
  mutable std::mutex mutex_;
  std::string message_;
};

class DeviceHangs : public ::testing::Test {
 protected:
  DeviceHangs()
      : ranks_(world().communicator()),
        records_(NodeMemory::build(ranks_, static_cast<int64_t>(ActionRecord::memory_bytes()), 0)),
        record_(records_.own()),
        device_(make_nccl_collectives(ranks_, []() -> void* { return nullptr; })),
        recorded_(make_recorded_collectives(*device_, record_, "fsdp")),
        buffer_(device().allocate(kCount * sizeof(double))),
        directory_(ranks_),
        watchdog_(records_, record_,
                  WatchdogOptions{kDeadline, directory_.path(), ranks_.size(),
                                  [this](const std::string& message) { said_.say(message); }}) {}

  ~DeviceHangs() override { device().free(buffer_); }

  bool is_first() const { return ranks_.rank() == 0; }

  /// The host does not wait for it.
  void all_reduce(int64_t count = kCount) {
    recorded_->all_reduce(buffer_, count, DType::Float64, ReduceOp::Sum).wait();
  }

  const Communicator ranks_;
  const NodeMemory records_;
  ActionRecord record_;
  const std::unique_ptr<Collectives> device_;
  std::unique_ptr<Collectives> recorded_;
  void* const buffer_;
  const SharedDirectory directory_;
  Said said_;
  Watchdog watchdog_;
};

TEST_F(DeviceHangs, ARankThatADeviceWaitsForIsNamed) {
  {
    const ActionRecord::Action action(record_, is_first() ? "read the loss" : "load");
    if (is_first()) {
      all_reduce();
      said_.within(kDeadline + 10);
    }
    directory_.barrier();
  }
  if (!is_first()) all_reduce();  // too late, but it lets the test end
  device().compute().drain();
  if (!is_first()) return;
  const std::string message = said_.read();
  EXPECT_NE(message.find("rank 1 ("), std::string::npos) << message;
  EXPECT_NE(message.find("is behind: it is in load"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 0 in read the loss"), std::string::npos) << message;
  EXPECT_NE(message.find("its device in all_reduce 8 float64 #1 of fsdp (ranks 0 1)"),
            std::string::npos)
      << message;
}

/// The report tells only the launch of a graph, not its contents.
TEST_F(DeviceHangs, ARankThatAGraphWaitsForIsNamed) {
  const Plan plan = plan_of(run_of(grid_scenarios().front(), {{1, 1}, "full_shard", 2}), 2);
  Mesh mesh(ranks_, plan.mesh, make_stand_in_collectives, &record_);
  StepGraphs graphs(1, 0, mesh, stand_in_device());
  const at::Tensor sum =
      at::ones({kCount}, at::TensorOptions().dtype(at::kDouble).device(stand_in_device()));
  const auto run = [&] {
    graphs.run({}, {}, [&](const std::vector<Microbatch>&) {
      mesh.world().all_reduce(sum.data_ptr(), kCount, DType::Float64, ReduceOp::Sum).wait();
      return StepLoss();
    });
  };
  run(), run();
  device().compute().drain();
  {
    const ActionRecord::Action action(record_, is_first() ? "read the loss" : "load");
    if (is_first()) {
      run();
      said_.within(kDeadline + 10);
    }
    directory_.barrier();
  }
  if (!is_first()) run();
  EXPECT_EQ(sum[0].item<double>(), 8);
  EXPECT_EQ(graphs.counts().replayed, 1);
  if (!is_first()) return;
  const std::string message = said_.read();
  EXPECT_NE(message.find("is behind: it is in load"), std::string::npos) << message;
  EXPECT_NE(message.find("its device in a step's graph #2 of graphs of steps"), std::string::npos)
      << message;
}

TEST_F(DeviceHangs, ADeviceThatGoesOnIsLeftAlone) {
  directory_.barrier();
  {
    const ActionRecord::Action action(record_, "read the loss");
    for (int i = 0; i < 4; ++i) {
      device().compute().push([] { sleep_seconds(0.4 * kDeadline); });
      all_reduce();
    }
    device().compute().drain();
  }
  EXPECT_EQ(said_.read(), "");
  directory_.barrier();
}

TEST_F(DeviceHangs, ACommunicationThatFailsEndsAHostThatWaits) {
  const int64_t count = is_first() ? kCount : kCount - 1;
  try {
    all_reduce(count);
  } catch (const CommError&) {  // found at once
    return device().take_faults().clear();
  }
  const ActionRecord::Action action(record_, "read the loss");
  const std::string message = said_.within(kDeadline + 10), rank = std::to_string(ranks_.rank());
  EXPECT_NE(message.find("rank " + rank + ": the device has not done all_reduce " +
                         std::to_string(count) +
                         " float64 #1 of fsdp (ranks 0 1): a "
                         "communication over NCCL failed"),
            std::string::npos)
      << message;
  device().take_faults();
}

}  // namespace
}  // namespace zea::testing::test_device_hangs
