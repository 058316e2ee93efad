// SPDX-License-Identifier: Apache-2.0
// What lies where a checkpoint is to be written: the same one, another, the rest of a killed save,
// somebody else's files.
#include <gtest/gtest.h>

#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_checkpoint.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"
#include "zea/io/checkpoint_list.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

TEST(CheckpointPlaces, IsLeftWhenItIsThereAndSetAsideWhenItIsAnother) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    CheckpointRequest again = request(shared.path(), 7);
    const std::string path = write_checkpoint(running.engine, control, again);
    const auto time = fs::last_write_time(path + "/manifest.json");
    EXPECT_EQ(write_checkpoint(running.engine, control, again), path);
    EXPECT_EQ(fs::last_write_time(path + "/manifest.json"), time);
    control.barrier();

    again.run_id = "run-2";
    write_checkpoint(running.engine, control, again);

    if (control.rank() == 0) {
      EXPECT_EQ(CheckpointSource(path).manifest().run_id, "run-2");
      EXPECT_EQ(CheckpointSource(path + ".replaced-1").manifest().run_id, "run-1");
    }
  });
}

TEST(CheckpointPlaces, ReplacesWhatAKilledSaveLeft) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    if (running.control->rank() == 0) {
      fs::create_directory(shared / "step-00000007.tmp");
      write_bytes(shared / "step-00000007.tmp/rank-00000.h5", "half");
      write_bytes(shared / "step-00000007.tmp/rank-00077.h5", "half");
    }

    const std::string path =
        write_checkpoint(running.engine, *running.control, request(shared.path(), 7));

    if (running.control->rank() == 0) CheckpointSource(path).check_all();
  });
}

TEST(CheckpointPlaces, RefusesAnythingOfSomebodyElseInItsWay) {
  const SharedDirectory shared;
  run_on(layouts_of_this_run().back(), {}, [&](Running& running) {
    Collectives& control = *running.control;
    if (control.rank() == 0) {
      write_bytes(shared / "file", "mine");
      fs::create_directory(shared / "step-00000007.tmp");
      write_bytes(shared / "step-00000007.tmp/notes.txt", "mine");
    }

    EXPECT_THROW(write_checkpoint(running.engine, control, request(shared / "file", 7)),
                 StorageError);
    EXPECT_THROW(write_checkpoint(running.engine, control, request(shared.path(), 7)),
                 StorageError);

    control.barrier();
    EXPECT_TRUE(fs::exists(shared / "step-00000007.tmp/notes.txt"));
    EXPECT_TRUE(list_checkpoints(shared.path()).empty());
  });
}

}  // namespace
}  // namespace zea
