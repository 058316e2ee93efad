// SPDX-License-Identifier: Apache-2.0
// The training loop with found_inf on the device: it logs, counts, saves and leaves the same as
// with the host's check, on the same device.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/planted_loss.hpp"
#include "device/torch_device.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_run.hpp"
#include "train/trainer.hpp"
#include "train/training_data.hpp"
#include "zea/checkpoint.hpp"

namespace zea::testing::test_device_trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSteps = 6, kEvery = 4;
constexpr double kLong = 0.3;  ///< seconds
constexpr int64_t kFault = 3;  ///< the loss, of those of the first rank, that is not finite

const GridScenario& scenario() {
  return grid_scenarios().front();
}

Grid grid() {
  const Grid both{{1, 1}, "full_shard", 2};
  return world().communicator().size() == 1 ? one_rank_like(both) : both;
}

struct Ended {
  ExitCode code = ExitCode::Internal;
  TrainPosition position = {};
  std::vector<Json> lines = {};  ///< of metrics.jsonl, without times and memory
  std::vector<std::string> checkpoints = {};
  int64_t calls = 0, waited_at_once = 0;  ///< of host collectives

  std::vector<Json> of_kind(const std::string& kind) const {
    std::vector<Json> found;
    for (const Json& line : lines)
      if (line.at("kind") == kind) found.push_back(line);
    return found;
  }
};

int64_t units_run = 0;  ///< so far
bool walks_long = false;

void sleep_long() {
  std::this_thread::sleep_for(std::chrono::duration<double>(kLong));
}

UnitOutput counted_unit(const UnitArguments& call) {
  ++units_run;
  UnitOutput made = planted_unit(call);
  if (walks_long && made.loss.defined()) device().compute().push_aside(sleep_long);
  return made;
}

/// Host collectives, and how many of them were waited for with nothing launched since they began.
class CountedControl : public WrappedCollectives {
 public:
  using WrappedCollectives::WrappedCollectives;

  Pending start(const CollectiveCall& call) override {
    ++calls;
    return Pending(std::make_unique<Counted>(inner_.start(call), waited_at_once));
  }

  int64_t calls = 0, waited_at_once = 0;

 private:
  class Counted : public Pending::Work {
   public:
    Counted(Pending inner, int64_t& waited_at_once)
        : inner_(std::move(inner)), waited_at_once_(waited_at_once) {}
    void wait() override {
      waited_at_once_ += units_run == units_before_;
      inner_.wait();
    }
    bool test() override { return inner_.test(); }

   private:
    Pending inner_;
    int64_t& waited_at_once_;
    const int64_t units_before_ = units_run;
  };
};

class DeviceTrainer : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override { have_kernels(false); }

  /// `by_host`: asked for by a guard whose window is never full. `asks`: a file in its directory.
  static Ended train(bool by_host, const std::string& asks = "", int64_t fault = 0,
                     int64_t log_every = 1, bool saves = true) {
    TinyRunOptions run = run_of(scenario(), grid());
    Options& deck = run.deck;
    deck.schedule.steps = kSteps;
    deck.optim.on_nonfinite = "skip";
    if (by_host) deck.optim.spike_deviations = 1e6;
    deck.log.every = log_every;
    deck.checkpoint.every = AutoOption::of_count(saves ? kEvery : 0);
    deck.checkpoint.at_end = saves;
    deck.checkpoint.keep = 0;
    run.device = stand_in_device();
    run.run_unit = counted_unit;
    const MemoryDataset dataset = dataset_of(scenario(), grid());
    const SharedDirectory directory(world().communicator());
    TinyRun training(world().communicator(), make_stand_in_collectives, dataset, run);
    const int rank = training.control().rank();
    std::filesystem::create_directories(directory / "checkpoints");
    if (rank == 0 && !asks.empty()) std::ofstream(directory / asks);
    directory.barrier();

    plant_loss(rank == 0 ? fault : 0);
    Optimizer optimizer(training.engine());
    CountedControl control(training.control());
    StopRequest stop(directory.path(), rank == 0, 0);
    Log log(false, "");
    const MetricsFile metrics(rank == 0 ? directory / "metrics.jsonl" : "");
    TensorBytes tensor_bytes;
    Trainer trainer({.engine = training.engine(),
                     .optimizer = optimizer,
                     .control = control,
                     .train = dataset,
                     .eval = nullptr,
                     .loading = loading_on(training.engine().plan(), rank),
                     .stop = stop,
                     .log = log,
                     .metrics = metrics,
                     .tensor_bytes = tensor_bytes,
                     .run_directory = directory.path(),
                     .run_id = "run-1",
                     .deck = ""},
                    {});
    Ended ended{.code = trainer.run(), .position = trainer.position()};
    ended.calls = control.calls, ended.waited_at_once = control.waited_at_once;
    directory.barrier();
    for (const auto& entry : std::filesystem::directory_iterator(directory / "checkpoints"))
      if (entry.path().filename().string().starts_with("step-"))
        ended.checkpoints.push_back(entry.path().filename());
    std::ranges::sort(ended.checkpoints);
    std::ifstream file(directory / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) ended.lines.push_back(Json::parse(line));
    directory.barrier();
    return ended;
  }

  static void expect_same_lines(const Ended& got, const Ended& expected, const std::string& kind,
                                const std::vector<std::string>& keys) {
    const auto ours = got.of_kind(kind), theirs = expected.of_kind(kind);
    ASSERT_EQ(ours.size(), theirs.size()) << kind;
    for (size_t i = 0; i < ours.size(); ++i)
      for (const std::string& key : keys)
        EXPECT_EQ(ours[i].at(key).dump(), theirs[i].at(key).dump())
            << kind << ' ' << i << ' ' << key;
  }
};

TEST_F(DeviceTrainer, LogsAndSavesWhatTheHostWouldHave) {
  for (const int64_t fault : {int64_t{0}, kFault}) {
    const Ended got = train(false, "", fault), expected = train(true, "", fault);
    EXPECT_EQ(got.code, ExitCode::Done);
    EXPECT_EQ(got.checkpoints, (std::vector<std::string>{"step-00000004", "step-00000006"}));
    EXPECT_EQ(got.checkpoints, expected.checkpoints);
    EXPECT_EQ(got.position.optimizer_step, kSteps - (fault > 0));
    TrainPosition position = expected.position;
    position.history = got.position.history;  // the host's guard has a window
    EXPECT_EQ(got.position, position);
    if (world().rank() != 0) continue;
    EXPECT_EQ(std::ssize(got.of_kind("train")), kSteps);
    expect_same_lines(got, expected, "train", {"step", "loss", "grad_norm", "lr"});
    expect_same_lines(got, expected, "checkpoint", {"step"});
    EXPECT_EQ(got.of_kind("skip").size(), fault > 0 ? 1u : 0u);
    expect_same_lines(got, expected, "skip", {"step", "in_a_row", "samples"});
  }
  EXPECT_TRUE(device().take_faults().empty());
}

/// Heard by all at the end of the next step, and acted on at once.
TEST_F(DeviceTrainer, SavesAndLeavesAStepLater) {
  const Ended saved = train(false, "SAVE");
  EXPECT_EQ(saved.code, ExitCode::Done);
  EXPECT_EQ(saved.checkpoints,
            (std::vector<std::string>{"step-00000002", "step-00000004", "step-00000006"}));
  const Ended left = train(false, "STOP");
  EXPECT_EQ(left.code, ExitCode::Requeue);
  EXPECT_EQ(left.checkpoints, std::vector<std::string>{"step-00000002"});
  EXPECT_EQ(left.position.step, 2);
  EXPECT_EQ(left.position.optimizer_step, 2);
  EXPECT_EQ(train(true, "STOP").checkpoints, std::vector<std::string>{"step-00000001"});
}

/// The log line's exchange with other ranks runs while the next step is launched.
TEST_F(DeviceTrainer, ALineOfEveryStepLetsNoHostWaitForAnother) {
  const Ended rarely = train(false, "", 0, kSteps, false), always = train(false, "", 0, 1, false);
  EXPECT_EQ(always.calls - rarely.calls, kSteps - 1) << "one for each of the lines more";
  EXPECT_EQ(always.waited_at_once, rarely.waited_at_once);
  EXPECT_GT(always.waited_at_once, 0) << "those of the start and the end";
}

/// This includes the first step of a start, whose result the host learns in the second.
TEST_F(DeviceTrainer, ALineHasTheSecondsOfItsSteps) {
  walks_long = true;
  const Ended ended = train(false, "", 0, 1, false);
  walks_long = false;
  if (world().rank() != 0) return;
  const std::vector<Json> lines = ended.of_kind("train");
  EXPECT_EQ(std::ssize(lines), kSteps);
  for (const Json& line : lines) {
    const auto samples = static_cast<double>(ended.position.samples) / kSteps;
    EXPECT_GE(samples / line.at("samples_per_second").get<double>(), kLong) << line.at("step");
  }
}

}  // namespace
}  // namespace zea::testing::test_device_trainer
