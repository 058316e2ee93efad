// SPDX-License-Identifier: Apache-2.0
// Which checkpoints there are. One is complete when it has its final name and a manifest inside;
// only such are ever listed. Their contents are not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zea {

/// "step-00000200"; more digits where eight do not do.
std::string checkpoint_name(int64_t step);

/// Inverse of checkpoint_name; nullopt for any other name.
std::optional<int64_t> step_of_name(const std::string& name);

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

/// Whether `directory` has a manifest of its own (not a link).
bool has_manifest(const std::string& directory);

/// Names of the real directories in `directory`; links are never followed, since what they lead to
/// is not ours. None when it does not exist. Throws StorageError.
std::vector<std::string> directories_in(const std::string& directory);

/// The complete checkpoints in `directory`, oldest step first; none when there is no such
/// directory.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory);

/// Those of a run directory: in its checkpoints/, or in itself where there are none.
std::vector<CheckpointEntry> list_checkpoints_of_run(const std::string& run);

/// The run directory of a checkpoint in its checkpoints/; empty for one that lies elsewhere.
std::string run_of_checkpoint(const std::string& checkpoint);

}  // namespace zea
