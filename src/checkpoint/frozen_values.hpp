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
#include "io/model_source.hpp"
#include "parallel/engine.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

struct OwnPiece;

/// Returns whether a floating type has all values of another.
bool keeps_values(DType from, DType to);

class FrozenOrigin {
 public:
  /// The plan's values were read from `source`, which outlives this.
  FrozenOrigin(const Plan& plan, const WeightsSource& source);

  const WeightsSource& source() const { return source_; }
  /// Returns the type in files of a frozen parameter that is `held` so: that of the source,
  /// but none wider than masters.
  DType type_of(const std::string& param, DType held) const;
  /// Writes packed elements [first, first + count) of a piece, given as they are `held`, to
  /// `target` in its type in files. Returns false if they are rounded, as the source has
  /// changed since. Any threads may call it.
  bool restore(const OwnPiece& piece, int64_t first, int64_t count, const char* held,
               char* target) const;

 private:
  const WeightsSource& source_;
  DType master_;
};

/// One rank's frozen file in a complete checkpoint, which its next save links. Its values are
/// those of the engine, as this process wrote it, or read and checked every block of it. Its
/// identity, which costs no reading, shows whether somebody has replaced or written it since. A
/// bad disk, or a time that was set back, is found by the hashes when the checkpoint is read.
struct FrozenShard {
  std::string path, run_id;
  FileIdentity identity;
  ManifestFile file;
  std::vector<Piece> pieces;

  int64_t bytes() const;  ///< of its values
};

/// Returns this rank's frozen file of `read`, from which the engine's values were just read;
/// nullopt unless it holds exactly the pieces that this rank would write, of `origin`.
std::optional<FrozenShard> find_frozen_shard(Engine& engine, const FrozenOrigin& origin,
                                             const CheckpointSource& read);

}  // namespace zea::detail
