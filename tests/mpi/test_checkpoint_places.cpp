// SPDX-License-Identifier: Apache-2.0
// Saving to a path that already exists: with the same checkpoint, another one, the rest of a killed
// save, or files of others.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_writer.hpp"
#include "io/checkpoint.hpp"
#include "support/files.hpp"
#include "support/filled_run.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_checkpoint_places {
namespace {

namespace fs = std::filesystem;
using CheckpointPlaces = FilledRun;

TEST_F(CheckpointPlaces, IsLeftWhenItIsThereAndSetAsideWhenItIsAnother) {
  CheckpointRequest again = request(shared_.path(), 7);
  const std::string path = write_checkpoint(running_.engine, control_, again);
  const auto time = fs::last_write_time(path + "/manifest.json");
  EXPECT_EQ(write_checkpoint(running_.engine, control_, again), path);
  EXPECT_EQ(fs::last_write_time(path + "/manifest.json"), time);
  control_.barrier();

  again.run_id = "run-2";
  write_checkpoint(running_.engine, control_, again);

  if (control_.rank() == 0) {
    EXPECT_EQ(CheckpointSource(path).manifest().run_id, "run-2");
    EXPECT_EQ(CheckpointSource(path + ".replaced-1").manifest().run_id, "run-1");
  }
}

TEST_F(CheckpointPlaces, ReplacesWhatAKilledSaveLeft) {
  if (control_.rank() == 0) {
    fs::create_directory(shared_ / "step-00000007.tmp");
    write_bytes(shared_ / "step-00000007.tmp/rank-00000.h5", "half");
    write_bytes(shared_ / "step-00000007.tmp/rank-00077.h5", "half");
  }

  const std::string path = write_checkpoint(running_.engine, control_, request(shared_.path(), 7));

  if (control_.rank() == 0) CheckpointSource(path).check_all();
}

TEST_F(CheckpointPlaces, RefusesAnythingOfSomebodyElseInItsWay) {
  if (control_.rank() == 0) {
    write_bytes(shared_ / "file", "mine");
    fs::create_directory(shared_ / "step-00000007.tmp");
    write_bytes(shared_ / "step-00000007.tmp/notes.txt", "mine");
  }

  EXPECT_THROW(write_checkpoint(running_.engine, control_, request(shared_ / "file", 7)),
               StorageError);
  EXPECT_THROW(write_checkpoint(running_.engine, control_, request(shared_.path(), 7)),
               StorageError);

  control_.barrier();
  EXPECT_TRUE(fs::exists(shared_ / "step-00000007.tmp/notes.txt"));
  EXPECT_TRUE(list_checkpoints(shared_.path()).empty());
}

}  // namespace
}  // namespace zea::test_checkpoint_places
