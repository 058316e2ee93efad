// SPDX-License-Identifier: Apache-2.0
// Chooses which of the complete checkpoints (io/checkpoint_list.hpp) to resume from, and which
// to delete. One process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"

namespace zea {

/// Is called for each removed file: removing many is slow, not stuck.
using OnRemoved = std::function<void()>;

/// Deletes complete checkpoints older than the newest `keep` (at least 1) whose manifests can
/// be read. A checkpoint with a bad manifest, or with foreign files in it, is neither counted
/// nor deleted. Throws StorageError.
void keep_newest(const std::string& directory, int64_t keep);
/// Checkpoints under names that do not look complete, to be deleted.
struct RetiredCheckpoints {
  std::vector<std::string> directories;  ///< their new names
  std::string fault;                     ///< why the first kept its name; empty: none did
};
/// The first half of keep_newest(). Throws StorageError where the directory cannot be listed.
RetiredCheckpoints retire_all_but_newest(const std::string& directory, int64_t keep,
                                         const OnRemoved& removed = {});
/// The second half. Removes what it can; throws StorageError for the first that stays.
void remove_retired(const std::vector<std::string>& directories, const OnRemoved& removed = {});

/// Returns the run that wrote a checkpoint; none where its manifest cannot be read.
std::optional<std::string> run_id_of(const std::string& checkpoint);

/// Renames `checkpoint`, or whatever has its name, to "....replaced-1", which is never listed.
/// Returns the new name. Throws StorageError.
std::string set_aside(const std::string& checkpoint);

/// Sets aside the complete checkpoints in `directory` of steps after `step`: a run that resumes
/// there writes them anew. Returns their new names. Throws StorageError.
std::vector<std::string> set_aside_later(const std::string& directory, int64_t step);

/// Deletes the unfinished directories of killed saves in `directory`. Only for the process that
/// alone writes there.
void remove_unfinished(const std::string& directory, const OnRemoved& removed = {});

struct ResolvedCheckpoint {
  std::string path;
  std::string note;  ///< which newer checkpoints were passed over and why; empty when none was
};

/// A checkpoint that could be opened, but whose data is damaged.
struct DamagedCheckpoint {
  std::string path, fault;
};

/// Returns whether `path` is a checkpoint or a file itself, so that no other is meant.
bool names_checkpoint(const std::string& path);

/// Returns the checkpoint that `path` names; for a run directory (or its checkpoints/) the
/// newest one there that can be opened and is none of `damaged`. Throws WeightsError when there
/// is none.
ResolvedCheckpoint resolve_checkpoint(const std::string& path,
                                      const std::vector<DamagedCheckpoint>& damaged = {});

// Removal touches only files that zea itself writes there.
namespace detail {

inline constexpr const char* kUnfinishedSuffix = ".tmp";

/// Returns a file or directory in `directory` that no save makes; empty when there is none.
std::string find_stranger(const std::string& directory);

/// Removes a save's directory, its manifest first; does nothing when there is none. Throws
/// StorageError when a foreign file is in it.
void remove_checkpoint(const std::string& directory, const OnRemoved& removed = {});

}  // namespace detail

}  // namespace zea
