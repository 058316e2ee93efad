// SPDX-License-Identifier: Apache-2.0
// Frozen values in checkpoints. They go out as they came in: bit for bit and in the type of the
// file that they were read from, whatever type a run computes in. Values held in a wider type are
// narrowed back; rounded ones are read again as they are written, so memory holds nothing twice.
// Their file is written by the first save of a run; each later checkpoint hard-links it, so every
// directory is complete and the disk has the bytes once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/weights_source.hpp"
#include "parallel/engine.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

struct OwnPiece;

/// Whether a floating type has all values of another.
bool keeps_values(DType from, DType to);

class FrozenOrigin {
 public:
  /// `source`, which a plan's values were read from, has to live as long.
  FrozenOrigin(const Plan& plan, const WeightsSource& source);

  const WeightsSource& source() const { return source_; }
  /// In files, of a frozen parameter that is `held` so: that of the source, but none wider than
  /// masters, as that of values which are drawn.
  DType type_of(const std::string& param, DType held) const;
  /// Puts packed elements [first, first + count) of a piece into `target`, in its type in files,
  /// given how they are `held`. False: they are rounded, as the source has no longer what they were
  /// read from. By any threads.
  bool restore(const OwnPiece& piece, int64_t first, int64_t count, const char* held,
               char* target) const;

 private:
  const WeightsSource& source_;
  DType master_;
};

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
