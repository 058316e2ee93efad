// SPDX-License-Identifier: Apache-2.0
// Which checkpoints there are, which of them to resume from, and which to delete. One process; a
// checkpoint is complete when it has its final name and a manifest inside, and only such are ever
// listed or deleted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zea {

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

/// The complete checkpoints in `directory`, oldest step first; none when there is no such
/// directory.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

std::optional<std::string> newest_checkpoint(const std::string& directory);

/// Deletes complete checkpoints older than the newest `keep` (at least 1) whose manifests can be
/// read. One with a bad manifest, or with files of somebody else in it, is neither counted nor
/// deleted. Throws StorageError.
void keep_newest(const std::string& directory, int64_t keep);

/// Deletes what saves that were killed left behind in `directory`. Only for the process that alone
/// writes there.
void remove_unfinished(const std::string& directory);

struct ResolvedCheckpoint {
  std::string path;
  std::string note;  ///< which newer checkpoints were passed over and why; empty when none was
};

/// `path` is a checkpoint itself, or a run directory (or its checkpoints/), which means the newest
/// one that can be opened. Throws WeightsError when there is none.
ResolvedCheckpoint resolve_checkpoint(const std::string& path);

}  // namespace zea
