// SPDX-License-Identifier: Apache-2.0
// A whole small training run in memory, on any communicator and layout: layout tests compare its
// results.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/mesh.hpp"
#include "data/sampler.hpp"
#include "io/manifest.hpp"
#include "schedule/plan.hpp"
#include "support/memory_dataset.hpp"
#include "train/cache_features.hpp"
#include "train/evaluate.hpp"
#include "train/step_replay.hpp"
#include "train/train_step.hpp"
#include "zea/weights.hpp"

namespace zea::testing {

/// A run's result: losses and gradient norms of each step, every weight afterwards, and the
/// ledger's peak.
struct TinyResult {
  std::vector<double> losses, grad_norms;
  std::vector<ExpertLoads::Imbalance> expert_imbalance;  ///< of each step
  std::map<std::string, std::vector<double>> weights;
  int64_t peak_bytes = 0;
  int64_t tensor_peak_bytes = 0;  ///< of all tensors: the ledger's and those of a step
  StepGraphs::Counts graphs;      ///< of the latest steps trained at once
  std::vector<ReplayFinding> replay_findings;
  double eval_loss = 0;  ///< over the whole data set, after training
};

struct TinyRunOptions {
  Options deck;
  std::string config_json;
  int64_t steps = 10;
  uint64_t weights_seed = 1;
  at::Device device = at::kCPU;
  bool evaluates = false;                  ///< after training
  std::function<void(ModelSpec&)> remake;  ///< of the model, for what no config can ask for here
  std::function<void(Plan&)> adjust;       ///< of the plan, for what no deck can
  std::function<void(Engine&)> fill;       ///< changes the weights before training
  RunUnit run_unit = zea::run_unit;        ///< what the units do
};

/// The plan of such a run.
Plan plan_of(const TinyRunOptions& options, int ranks);

/// Every parameter, or one of the optimizer's states, in full.
using Tensors = std::map<std::string, std::vector<double>>;

/// A run that can be stopped, saved and resumed in between. Making it and all calls are collective.
class TinyRun {
 public:
  /// `dataset` must outlive it.
  TinyRun(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
          const TinyRunOptions& options);

  /// Goes on for `steps`, appending losses and norms to `result`.
  void train(int64_t steps, TinyResult& result);
  /// The loss over the whole data set.
  double evaluate();
  Tensors weights();
  /// Returns a state of the plan's optimizer, by name; zero for parameters that are not trained.
  Tensors state(const std::string& name);
  /// All of them.
  std::map<std::string, Tensors> states();

  Engine& engine() { return engine_; }
  Collectives& control() { return *control_; }
  TrainPosition& position() { return position_; }

 private:
  LoaderOptions loading() const;  ///< of items
  bool replays() const { return plan_.options.run.replay_every > 0; }
  Tensors collect(const std::function<at::Tensor(const ShardedBuffer&)>& values,
                  const StateSpec& state = {});

  const Dataset& dataset_;
  Plan plan_;
  Mesh mesh_;
  std::unique_ptr<Collectives> control_;
  PassHashes hashes_;  ///< for run.replay_every
  Engine engine_;
  FeatureCaches features_;                ///< where data.cache_features asks for them
  std::unique_ptr<Optimizer> optimizer_;  ///< made after the weights are there
  Sampler sampler_;
  TrainPosition position_;
};

/// Trains on `dataset` on all ranks of `world`. Collective.
TinyResult run_tiny(const Communicator& world, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options);

/// Samples with `images` and, for models with audio, `clips` (repeating patterns of items per
/// sample) of random pixels and noise, random text of varied length and loss on its last part. In
/// Qwen-Omni, if the last image of a sample is a video, the first clip is its audio track.
MemoryDataset make_tiny_dataset(const ModelSpec& model, int64_t samples,
                                const std::vector<int>& images, uint64_t seed,
                                const std::vector<int>& clips = {1, 1, 0});

/// Largest absolute difference; infinity when names or sizes differ.
double max_difference(const std::map<std::string, std::vector<double>>& a,
                      const std::map<std::string, std::vector<double>>& b);

}  // namespace zea::testing
