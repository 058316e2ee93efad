// SPDX-License-Identifier: Apache-2.0
// Saving: every rank writes its own 1/N cut of every buffer into a directory with an unfinished
// name; only when all files are synced, every element is covered exactly once and the manifest is
// there does it get its final name.
#pragma once

#include <string>

#include "zea/comm/collectives.hpp"
#include "zea/io/manifest.hpp"
#include "zea/parallel/engine.hpp"

namespace zea {

struct CheckpointRequest {
  std::string directory;  ///< where step-... directories lie; made when it is not there
  std::string run_id;
  TrainPosition position;
  std::string deck;  ///< resolved TOML
};

/// Writes `directory`/step-NNNNNNNN and returns its path. Collective over `control`: host
/// collectives of all ranks, in order of world rank. A checkpoint of this run, step and position
/// that is already complete is left as it is; any other in its place is renamed to
/// step-NNNNNNNN.replaced-K, never deleted. On a failure all ranks throw (StorageError for the
/// disk's), what was begun is removed, and earlier checkpoints are untouched.
std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request);

}  // namespace zea
