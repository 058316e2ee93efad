// SPDX-License-Identifier: Apache-2.0
#include "device/accesses.hpp"

namespace zea::testing {

std::optional<Access> Accesses::add(const Access& access, const Clock& seen) {
  std::optional<Access> race;
  std::erase_if(open_, [&](const Access& earlier) {
    if (earlier.end <= access.begin || access.end <= earlier.begin) return false;
    const bool ordered = seen.has_seen(earlier.stream, earlier.time);
    if (!ordered && (earlier.writes || access.writes)) race = earlier;
    // Whoever sees this one has seen that one, too.
    const bool covered = access.begin <= earlier.begin && earlier.end <= access.end;
    return ordered && covered && (access.writes || !earlier.writes);
  });
  open_.push_back(access);
  return race;
}

}  // namespace zea::testing
