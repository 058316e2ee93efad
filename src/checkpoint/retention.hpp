// SPDX-License-Identifier: Apache-2.0
// Which of the complete checkpoints (io/checkpoint_list.hpp) to resume from, and which to delete.
// One process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.hpp"

namespace zea {

/// Called for each file that is gone: of many, slow is not stuck.
using OnRemoved = std::function<void()>;

/// Deletes complete checkpoints older than the newest `keep` (at least 1) whose manifests can be
/// read. One with a bad manifest, or with files of somebody else in it, is neither counted nor
/// deleted. Throws StorageError.
void keep_newest(const std::string& directory, int64_t keep);
/// What goes away has no name any more under which it would look complete.
struct RetiredCheckpoints {
  std::vector<std::string> directories;  ///< as they are called now
  std::string fault;                     ///< of the first that keeps its name; empty: none does
};
/// The first half of it. Throws StorageError where the directory cannot be listed.
RetiredCheckpoints retire_all_but_newest(const std::string& directory, int64_t keep,
                                         const OnRemoved& removed = {});
/// The second half. Removes what it can; throws StorageError of the first that stays.
void remove_retired(const std::vector<std::string>& directories, const OnRemoved& removed = {});

/// The run that wrote a checkpoint; none where its manifest cannot be read.
std::optional<std::string> run_id_of(const std::string& checkpoint);

/// Gives `checkpoint`, or whatever has its name, another name that is never listed:
/// "....replaced-1", which it returns. Throws StorageError.
std::string set_aside(const std::string& checkpoint);

/// Sets aside the complete checkpoints in `directory` of steps after `step`: a run that goes on
/// from there writes them anew. Returns what they are called now. Throws StorageError.
std::vector<std::string> set_aside_later(const std::string& directory, int64_t step);

/// Deletes what saves that were killed left behind in `directory`. Only for the process that alone
/// writes there.
void remove_unfinished(const std::string& directory, const OnRemoved& removed = {});

struct ResolvedCheckpoint {
  std::string path;
  std::string note;  ///< which newer checkpoints were passed over and why; empty when none was
};

/// A checkpoint that could be opened, but whose data proved damaged when it was read.
struct DamagedCheckpoint {
  std::string path, fault;
};

/// Whether `path` is a checkpoint or a file itself: that one is meant, and no other.
bool names_checkpoint(const std::string& path);

/// What `path` names; or, where it is a run directory (or its checkpoints/), the newest checkpoint
/// there that can be opened and is none of `damaged`. Throws WeightsError when there is none.
ResolvedCheckpoint resolve_checkpoint(const std::string& path,
                                      const std::vector<DamagedCheckpoint>& damaged = {});

// Removal touches nothing but files which zea itself writes there.
namespace detail {

inline constexpr const char* kUnfinishedSuffix = ".tmp";

/// A file or directory in `directory` that no save makes; empty when there is none.
std::string find_stranger(const std::string& directory);

/// Removes a directory that a save made, its manifest first, and does nothing when there is none.
/// Throws StorageError when a stranger is in it.
void remove_checkpoint(const std::string& directory, const OnRemoved& removed = {});

}  // namespace detail

}  // namespace zea
