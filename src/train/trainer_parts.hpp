// SPDX-License-Identifier: Apache-2.0
// The objects that a training loop works with.
#pragma once

#include <string>

#include "core/log.hpp"
#include "data/loader.hpp"
#include "optim/optimizer.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/engine.hpp"
#include "train/cache_features.hpp"
#include "train/metrics.hpp"
#include "train/stop_request.hpp"

namespace zea {

/// All of them outlive the loop.
struct TrainerParts {
  Engine& engine;
  Optimizer& optimizer;
  Collectives& control;  ///< host collectives over all ranks
  const Dataset& train;
  const Dataset* eval;  ///< null: none
  LoaderOptions loading;
  FeatureCaches features = {};  ///< cached features that steps read in place of items
  StopRequest& stop;
  Log& log;
  const MetricsFile& metrics;
  TensorBytes& tensor_bytes;
  double peak_tflops = 0;  ///< of all ranks together; 0: not known
  std::string run_directory;
  std::string run_id;
  std::string deck;                        ///< resolved TOML, for checkpoints
  const WeightsSource* weights = nullptr;  ///< source of the engine's values; null: none
  const Options* resumed = nullptr;        ///< the deck of the resumed checkpoint; null: none
};

/// An estimate of how long something takes.
struct MovingAverage {
  double value = 0;  ///< 0: nothing was added
  void add(double next) { value = value == 0 ? next : 0.7 * value + 0.3 * next; }
};

}  // namespace zea
