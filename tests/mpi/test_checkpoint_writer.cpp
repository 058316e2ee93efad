// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written during training: the written values are those of the shards when the
// save began, byte for byte.
#include "checkpoint/checkpoint_writer.hpp"

#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "io/checkpoint.hpp"
#include "support/filled_run.hpp"

namespace zea::test_checkpoint_writer {
namespace {

namespace fs = std::filesystem;
using WriterOnAllRanks = FilledRun;

/// Changes the shards as training does.
void change(Running& running, double by) {
  for (const auto& buffer : running.engine.buffers()) {
    if (!buffer->trainable()) continue;
    for (const at::Tensor& values : {buffer->master(), running.engine.state(*buffer, "exp_avg"),
                                     running.engine.state(*buffer, "exp_avg_sq")})
      values.add_(by);
  }
}

std::map<std::string, std::string> bytes_of_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = read_bytes(entry.path().string());
  return files;
}

void check_report(const SaveReport& report) {
  EXPECT_GT(report.copied_bytes, 0);
  EXPECT_LE(report.copied_bytes, report.bytes);
  EXPECT_GE(report.stall_seconds, report.copy_seconds);
  EXPECT_GE(report.seconds, report.stall_seconds);
}

/// Saves slowly to `directory` while the shards change. None where the machine was too busy to come
/// to that before all was written or on its way. Collective.
std::optional<SaveReport> save_while_training(Running& running, const std::string& directory,
                                              int patience) {
  CheckpointWriter writer(running.engine, *running.control);
  CheckpointRequest slow = request(directory, 7);
  // The checkpoint has about 120 KiB in all.
  slow.rate_limit_mib = 0.25 / running.control->size() / patience;

  writer.start(slow);
  EXPECT_TRUE(writer.is_under_way());
  for (int step = 0; step < 3; ++step) {
    writer.snapshot_before_update();
    change(running, 1);
  }
  int32_t in_time = writer.is_writing();
  EXPECT_FALSE(fs::exists(directory + "/step-00000007"));
  const SaveReport report = writer.finish();

  EXPECT_FALSE(writer.is_under_way());
  EXPECT_EQ(report.path, directory + "/step-00000007");
  in_time = in_time && report.copied_bytes > 0;
  running.control->all_reduce(&in_time, 1, DType::Int32, ReduceOp::Min).wait();
  return in_time ? std::optional(report) : std::nullopt;
}

/// HDF5 leaves memory that it never set in the heap of virtual datasets: that file may differ, and
/// with it its hash in the manifest and the manifest's own.
std::map<std::string, std::string> own_bytes(const std::string& directory) {
  std::map<std::string, std::string> files = bytes_of_files(directory);
  std::string& manifest = files.at(kManifestFile);
  for (const char* key : {"\"view_hash\"", "\"digest\""}) {
    const size_t hash = manifest.find(key);
    EXPECT_NE(hash, std::string::npos) << key;
    manifest.erase(hash, manifest.find('\n', hash) - hash);
  }
  EXPECT_EQ(files.erase(kViewFile), 1);
  return files;
}

void expect_same_files(const std::string& path, const std::string& wanted) {
  const auto found = own_bytes(path), others = own_bytes(wanted);
  EXPECT_EQ(found.size(), others.size());
  for (const auto& [file, bytes] : others)
    EXPECT_TRUE(found.contains(file) && found.at(file) == bytes) << path << ' ' << file;
}

TEST(CheckpointWriter, WritesWhatTheShardsWereWhenItStarted) {
  const SharedDirectory shared;
  for (const bool trains_vision : {true, false})
    run_on(layouts_of_this_run().back(), {.train_vision = trains_vision}, [&](Running& running) {
      Collectives& control = *running.control;
      const std::string name = trains_vision ? "all-" : "frozen-";
      fill(running);
      const std::string wanted =
          write_checkpoint(running.engine, control, request(shared / name + "waited", 7));
      std::optional<SaveReport> report;
      for (int patience = 1; !report && patience <= 16; patience *= 4) {
        fill(running);
        report = save_while_training(running, shared / name + std::to_string(patience), patience);
      }

      ASSERT_TRUE(report) << "saves were too fast to test anything";
      check_report(*report);
      if (control.rank() == 0) expect_same_files(report->path, wanted);
      control.barrier();
      for (const auto& buffer : running.engine.buffers())
        buffer->master().zero_();  // its padding, too
      read_checkpoint(running.engine, control, CheckpointSource(report->path));
      expect_filled(running, name);
    });
}

/// Until no rank works in the background. Collective.
void wait_for_all(const CheckpointWriter& writer, Collectives& control) {
  while (writer.is_writing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  control.barrier();
}

TEST_F(WriterOnAllRanks, MakesFilesACheckpointInTheBackground) {
  CheckpointWriter writer(running_.engine, control_);
  writer.start(request(shared_.path(), 9));
  wait_for_all(writer, control_);
  EXPECT_FALSE(fs::exists(shared_ / "step-00000009"));
  control_.barrier();

  EXPECT_TRUE(writer.advance());
  wait_for_all(writer, control_);

  EXPECT_TRUE(fs::exists(shared_ / "step-00000009/manifest.json"));
  EXPECT_FALSE(writer.advance());
  EXPECT_EQ(writer.finish().path, shared_ / "step-00000009");
  read_checkpoint(running_.engine, control_, CheckpointSource(shared_ / "step-00000009"));
  expect_filled(running_, "made in the background");
}

TEST_F(WriterOnAllRanks, FailsOnAllRanksWhenFilesCannotBeMadeACheckpoint) {
  CheckpointWriter writer(running_.engine, control_);
  writer.start(request(shared_.path(), 9));
  wait_for_all(writer, control_);
  if (control_.rank() == 0) fs::create_directory(shared_ / "step-00000009.tmp/manifest.json.tmp");

  EXPECT_TRUE(writer.advance());
  EXPECT_THROW(writer.finish(), StorageError);

  EXPECT_FALSE(writer.is_under_way());
  EXPECT_FALSE(fs::exists(shared_ / "step-00000009"));
  control_.barrier();
}

TEST_F(WriterOnAllRanks, LeavesNothingThatLooksCompleteWhenItIsGivenUp) {
  {
    CheckpointWriter writer(running_.engine, control_);
    CheckpointRequest slow = request(shared_.path(), 7);
    slow.rate_limit_mib = 0.001;  // hours
    writer.start(slow);
  }
  control_.barrier();
  EXPECT_TRUE(list_checkpoints(shared_.path()).empty());

  write_checkpoint(running_.engine, control_, request(shared_.path(), 7));

  control_.barrier();
  read_checkpoint(running_.engine, control_, CheckpointSource(shared_ / "step-00000007"));
  expect_filled(running_, "after one that was given up");
}

TEST_F(WriterOnAllRanks, FailsOnAllRanksWhenAThreadFails) {
  CheckpointWriter writer(running_.engine, control_);
  std::optional<FileSizeLimit> limit;
  if (control_.rank() == control_.size() - 1) limit.emplace(4096);
  writer.start(request(shared_.path(), 8));
  writer.snapshot_before_update();
  change(running_, 1);

  EXPECT_THROW(writer.finish(), StorageError);

  EXPECT_FALSE(writer.is_under_way());
  control_.barrier();
  EXPECT_FALSE(fs::exists(shared_ / "step-00000008"));
  EXPECT_FALSE(fs::exists(shared_ / "step-00000008.tmp"));
}

}  // namespace
}  // namespace zea::test_checkpoint_writer
