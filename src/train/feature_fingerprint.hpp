// SPDX-License-Identifier: Apache-2.0
// What an encoder's features depend on, as a line each.
#pragma once

#include <map>
#include <string>

#include "train/cache_features.hpp"

namespace zea::detail {

/// A hash of everything of a kind, by its name: "weights", "config", "preprocessing", "data",
/// "type", "format". What items hold is compared when they are read. Collective.
std::map<std::string, std::string> feature_fingerprint(const CachedRun& run, int encoder);

/// Writes it into the folder of an encoder's features, or compares it with the one that is there.
/// Throws DataError naming what differs. On one rank.
void check_fingerprint(const std::string& folder, const std::map<std::string, std::string>& now);

}  // namespace zea::detail
