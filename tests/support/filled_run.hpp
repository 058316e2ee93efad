// SPDX-License-Identifier: Apache-2.0
// The common start of tests of checkpoints on all ranks of the program.
#pragma once

#include "support/tiny_checkpoint.hpp"

namespace zea {

/// The tiny model in the last of the layouts, its state filled, and a directory that all ranks
/// know. Collective.
class FilledRun : public ::testing::Test {
 protected:
  FilledRun()
      : ranks_(testing::world().communicator()),
        running_(ranks_, layouts_of_this_run().back(), {}),
        control_(*running_.control) {
    fill(running_);
  }

  const SharedDirectory shared_;
  const Communicator ranks_;
  Running running_;
  Collectives& control_;
};

}  // namespace zea
