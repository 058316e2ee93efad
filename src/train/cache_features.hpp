// SPDX-License-Identifier: Apache-2.0
// data.cache_features: before the first step the blocks of frozen encoders run over the data set
// once, on the ranks and in the layout of the run. The inputs of projectors are written to files,
// which steps read in place of the items.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"
#include "zea/weights.hpp"

namespace zea {

/// The cache of each encoder of the model; null: it is not cached.
using FeatureCaches = std::vector<std::shared_ptr<const FeatureCache>>;

struct CachedRun {
  Engine& engine;
  Collectives& control;          ///< host collectives over all ranks
  const Dataset& train;          ///< outlives the result
  LoaderOptions loading;         ///< of items
  const WeightsSource& weights;  ///< source of the engine's values
  Log& log;
};

/// Returns the features of all cached encoders: reads those in data.cache_features, and
/// computes the missing ones. Throws DataError if those there were made with other weights,
/// settings or data. Collective.
FeatureCaches cache_features(const CachedRun& run);

/// Returns the loader options with features in place of the items of cached encoders, for training
/// steps.
LoaderOptions with_features(LoaderOptions loading, const FeatureCaches& caches, const Plan& plan,
                            int world_rank);

namespace detail {

/// Returns a hash of each kind of input on which an encoder's features depend, by its name:
/// "weights", "config", "preprocessing", "data", "type", "format". Items are compared when they are
/// read. Collective.
std::map<std::string, std::string> feature_fingerprint(const CachedRun& run, int encoder);

/// Writes a fingerprint into the folder of an encoder's features, or compares it with the one that
/// is there. Throws DataError naming the kinds that differ. On one rank.
void check_fingerprint(const std::string& folder, const std::map<std::string, std::string>& now);

}  // namespace detail

}  // namespace zea
