// SPDX-License-Identifier: Apache-2.0
// data.cache_features: before the first step the blocks of frozen encoders run over the data set
// once, on the ranks and in the layout that they have, and what projectors read of them is written
// to files, which steps read in place of the items.
#pragma once

#include <memory>
#include <vector>

#include "comm/collectives.hpp"
#include "core/log.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"
#include "zea/weights.hpp"

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

}  // namespace zea
