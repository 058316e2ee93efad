// SPDX-License-Identifier: Apache-2.0
// The file of values that no step changes (a frozen encoder, a frozen language model): it is
// written with the first save of a run, and each later checkpoint has it as a hard link, so every
// directory is whole by itself and the disk has the bytes once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/frozen_origin.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "parallel/engine.hpp"

namespace zea::detail {

/// One rank's, in a complete checkpoint: what its next save links.
///
/// That the values are still those of the engine is known from where it comes: this process wrote
/// it, or read and checked every block of it. That the file is still the one is seen by its
/// identity, which costs no reading: who replaces it or writes to it by ordinary means changes
/// that. What fools it, a bad disk or a time set back by hand, is found by the hashes when the
/// checkpoint is read.
struct FrozenShard {
  std::string path, run_id;
  FileIdentity identity;
  ManifestFile file;
  std::vector<Piece> pieces;

  int64_t bytes() const;  ///< of its values
};

/// What `read`, which the engine's values were just read from, has of it; nullopt unless its file
/// holds exactly the pieces that this rank would write, of `origin`.
std::optional<FrozenShard> find_frozen_shard(Engine& engine, const FrozenOrigin& origin,
                                             const CheckpointSource& read);

}  // namespace zea::detail
