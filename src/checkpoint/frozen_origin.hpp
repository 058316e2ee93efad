// SPDX-License-Identifier: Apache-2.0
// What is frozen goes out as it came in: bit for bit and in the type of the file that it was read
// from, whatever type a run computes with it in. Values held in a type that has all of the file's
// are narrowed to what they were. Those that were rounded are read once more as they are written,
// so that memory holds none of them twice.
#pragma once

#include <string>

#include "schedule/plan.hpp"
#include "zea/weights.hpp"

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

}  // namespace zea::detail
