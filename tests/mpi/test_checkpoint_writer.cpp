// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written while training goes on: what is written is what the shards were when
// the save began, byte for byte.
#include "zea/checkpoint/checkpoint_writer.hpp"

#include <chrono>
#include <map>
#include <thread>

#include "support/tiny_checkpoint.hpp"
#include "zea/io/checkpoint_list.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// What training does to its shards.
void change(Running& running, double by) {
  for (const auto& group : running.engine.groups()) {
    if (!group->trainable()) continue;
    for (const at::Tensor& values : {group->master(), group->exp_avg(), group->exp_avg_sq()})
      values.add_(by);
  }
}

std::map<std::string, std::string> bytes_of_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = read_bytes(entry.path().string());
  return files;
}

/// How the values get out of the way of training.
struct Way {
  const char* name;
  bool stages;
  int milliseconds;  ///< from the start of the save to the first update
};

void check_reports(const Way& way, const SaveReport& report) {
  EXPECT_GT(report.copied_bytes, 0) << way.name;
  EXPECT_LE(report.copied_bytes, report.bytes) << way.name;
  EXPECT_LE(report.staged_bytes, report.copied_bytes) << way.name;
  if (!way.stages) {
    EXPECT_EQ(report.staged_bytes, 0) << way.name;
  } else if (way.milliseconds > 0) {
    EXPECT_GT(report.staged_bytes, 0) << way.name;
  }
  EXPECT_GE(report.stall_seconds, report.copy_seconds) << way.name;
  EXPECT_GE(report.seconds, report.stall_seconds) << way.name;
}

/// Saves slowly to `directory` while the shards change.
SaveReport save_while_training(Running& running, const std::string& directory, const Way& way) {
  CheckpointWriter writer(running.engine, *running.control);
  CheckpointRequest slow = request(directory, 7);
  slow.rate_limit_mib = 0.25 / running.control->size();  // of about 120 KiB in all
  slow.stages = way.stages;

  writer.start(slow);
  EXPECT_TRUE(writer.is_under_way());
  EXPECT_TRUE(writer.is_writing());
  std::this_thread::sleep_for(std::chrono::milliseconds(way.milliseconds));
  for (int step = 0; step < 3; ++step) {
    writer.keep_values();
    change(running, 1);
  }
  EXPECT_TRUE(writer.is_writing()) << "it was too fast to test anything";
  EXPECT_FALSE(fs::exists(directory + "/step-00000007"));
  const SaveReport report = writer.finish();

  EXPECT_FALSE(writer.is_under_way());
  EXPECT_EQ(report.path, directory + "/step-00000007");
  return report;
}

/// HDF5 leaves memory that it never set in the heap of virtual datasets: that file may differ.
void expect_same_files(const std::string& path, const std::string& wanted, int ranks) {
  std::map<std::string, std::string> found = bytes_of_files(path);
  EXPECT_EQ(found.size(), static_cast<size_t>(ranks) + 2);
  for (const auto& [file, bytes] : bytes_of_files(wanted))
    EXPECT_TRUE(file == "model.h5" || found[file] == bytes) << path << ' ' << file;
}

TEST(CheckpointWriter, WritesWhatTheShardsWereWhenItStarted) {
  constexpr Way kWays[] = {{"copied", false, 0}, {"both", true, 0}, {"staged", true, 150}};
  const SharedDirectory shared;
  for (const bool trains_vision : {true, false})
    run_on(layouts_of_this_run().back(), {.train_vision = trains_vision}, [&](Running& running) {
      Collectives& control = *running.control;
      const std::string name = trains_vision ? "all-" : "frozen-";
      fill(running);
      const std::string wanted =
          write_checkpoint(running.engine, control, request(shared / name + "waited", 7));
      for (const Way& way : kWays) {
        fill(running);

        const SaveReport report = save_while_training(running, shared / name + way.name, way);

        check_reports(way, report);
        if (control.rank() == 0) expect_same_files(report.path, wanted, control.size());
        control.barrier();
        for (const auto& group : running.engine.groups())
          group->master().zero_();  // its padding, too
        read_checkpoint(running.engine, control, CheckpointSource(report.path));
        expect_filled(running, name + way.name);
      }
    });
}

TEST(CheckpointWriter, LeavesNothingThatLooksCompleteWhenItIsGivenUp) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    {
      CheckpointWriter writer(running.engine, control);
      CheckpointRequest slow = request(shared.path(), 7);
      slow.rate_limit_mib = 0.001;  // hours
      writer.start(slow);
    }
    control.barrier();
    EXPECT_TRUE(list_checkpoints(shared.path()).empty());

    write_checkpoint(running.engine, control, request(shared.path(), 7));

    control.barrier();
    read_checkpoint(running.engine, control, CheckpointSource(shared / "step-00000007"));
    expect_filled(running, "after one that was given up");
  });
}

TEST(CheckpointWriter, FailsOnAllRanksWhenAThreadFails) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    fill(running);
    CheckpointWriter writer(running.engine, control);
    std::optional<FileSizeLimit> limit;
    if (control.rank() == control.size() - 1) limit.emplace(4096);
    writer.start(request(shared.path(), 8));
    writer.keep_values();
    change(running, 1);

    EXPECT_THROW(writer.finish(), StorageError);

    EXPECT_FALSE(writer.is_under_way());
    control.barrier();
    EXPECT_FALSE(fs::exists(shared / "step-00000008"));
    EXPECT_FALSE(fs::exists(shared / "step-00000008.tmp"));
  });
}

}  // namespace
}  // namespace zea
