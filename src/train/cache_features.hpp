// SPDX-License-Identifier: Apache-2.0
// data.cache_features: before the first step the blocks of frozen encoders run over the data set
// once, on the ranks and in the layout that they have, and what projectors read of them is written
// to files, which steps read in place of the items.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "data/loader.hpp"
#include "io/weights_source.hpp"
#include "parallel/engine.hpp"

namespace zea {

/// Of each encoder of the model; null: it is not cached.
using FeatureCaches = std::vector<std::shared_ptr<const FeatureCache>>;

struct CachedRun {
  Engine& engine;
  Collectives& control;          ///< host collectives over all ranks
  const Dataset& train;          ///< outlives what is returned
  LoaderOptions loading;         ///< of items
  const WeightsSource& weights;  ///< that the engine's values were read from
  Log& log;
};

/// The features of all cached encoders: those that lie in data.cache_features, and those that lack,
/// computed now. Throws DataError where what lies there was made of other weights, settings or
/// data. Collective.
FeatureCaches cache_features(const CachedRun& run);

/// The same loading with features in place of the items of cached encoders, for steps that train.
LoaderOptions with_features(LoaderOptions loading, const FeatureCaches& caches, const Plan& plan,
                            int world_rank);

namespace detail {

/// Returns a hash of everything of a kind that an encoder's features depend on, by its name:
/// "weights", "config", "preprocessing", "data", "type", "format". What items hold is compared when
/// they are read. Collective.
std::map<std::string, std::string> feature_fingerprint(const CachedRun& run, int encoder);

/// Writes a fingerprint into the folder of an encoder's features, or compares it with the one that
/// is there. Throws DataError naming the kinds that differ. On one rank.
void check_fingerprint(const std::string& folder, const std::map<std::string, std::string>& now);

}  // namespace detail

}  // namespace zea
