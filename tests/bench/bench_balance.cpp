// SPDX-License-Identifier: Apache-2.0
// The balance of 8 data-parallel replicas, on paper: conversations with images whose sizes are
// drawn like photographs, of 64 to 1,600 pixels a side, and the costs that distribute samples, of
// encoder and language model together. Prints, over 100 steps, the cost of the slowest replica over
// the mean, distributed by cost and in order: of whole steps, and where replicas wait for each
// other after every microbatch. Exit code 1 if the costliest step of 16 samples a replica or more
// is beyond 3 % when distributed by cost.
//
// usage: bench_balance CONFIG.json
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "data/sampler.hpp"
#include "schedule/plan.hpp"

namespace zea {
namespace {

constexpr int kReplicas = 8, kSteps = 100;

double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

/// The longer side has a logarithm that is spread evenly; the shape is one that cameras have.
ImageSize photograph(std::mt19937_64& random) {
  constexpr double kShapes[] = {1, 4.0 / 3, 3.0 / 2, 16.0 / 9};
  const double shape = kShapes[random() % std::size(kShapes)];
  const double longer = 64 * shape * std::pow(1600 / (64 * shape), uniform(random));
  const auto wide = static_cast<int64_t>(longer), high = static_cast<int64_t>(longer / shape);
  return random() % 3 == 0 ? ImageSize{wide, high} : ImageSize{high, wide};
}

/// 30 to 600 tokens of text, and none to two pictures.
std::vector<SampleIndex> index_of(int64_t samples, const EncoderSpec& vision) {
  std::mt19937_64 random(1);
  std::vector<SampleIndex> index;
  for (int64_t i = 0; i < samples; ++i) {
    constexpr int kPictures[] = {0, 1, 1, 1, 1, 1, 1, 1, 2, 2};
    SampleIndex sample{.tokens = static_cast<int64_t>(30 * std::pow(20, uniform(random)))};
    sample.targets = sample.tokens / 2;
    for (int left = kPictures[random() % std::size(kPictures)]; left > 0; --left) {
      const ItemShape shape = vision.item_shape(photograph(random));
      sample.items.add(0, 1, shape);
      sample.tokens += shape.features;
    }
    index.push_back(sample);
  }
  return index;
}

/// The slowest replica over the mean: of the whole step, and of its microbatches one by one.
struct Excess {
  double step = 0, waiting = 0;
};

Excess excess_of(const StepPlan& step, const std::vector<SampleIndex>& index,
                 const SampleCosts& costs) {
  const auto microbatches = static_cast<size_t>(step.num_microbatches());
  std::vector<double> loads, slowest(microbatches, 0);
  for (const std::vector<MicrobatchPlan>& replica : step.replicas) {
    loads.push_back(0);
    for (size_t m = 0; m < microbatches; ++m) {
      double load = 0;
      for (const int64_t sample : replica[m].samples) load += sample_cost(index[sample], costs);
      loads.back() += load;
      slowest[m] = std::max(slowest[m], load);
    }
  }
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / kReplicas;
  return {std::ranges::max(loads) / mean - 1,
          std::accumulate(slowest.begin(), slowest.end(), 0.0) / mean - 1};
}

struct Summary {
  double mean = 0, most = 0, waiting = 0;
};

Summary measure(const std::string& config, int64_t samples, bool balance) {
  Options deck;
  deck.mesh.dp_shard = kReplicas;
  deck.meshes["llm"].strategy = deck.meshes["vision"].strategy = "full_shard";
  deck.schedule.global_batch = kReplicas * samples;
  deck.data.row_tokens = 8192;
  deck.data.balance = balance;
  const Plan plan = make_plan(deck, config, kReplicas);
  const int64_t all = kSteps * deck.schedule.global_batch;
  const std::vector<SampleIndex> index = index_of(all, plan.model.encoders.at(0));
  const SampleCosts costs = plan.dealing.costs.at(0);
  Sampler sampler(all, deck.schedule.global_batch, 1, true);
  Summary summary;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Excess found =
        excess_of(plan.step_plan(step, sampler.global_batch(step), index), index, costs);
    summary.mean += found.step / kSteps;
    summary.waiting += found.waiting / kSteps;
    summary.most = std::max(summary.most, found.step);
  }
  return summary;
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::stringstream config;
  config << std::ifstream(argv[1]).rdbuf();
  bool holds = true;
  std::printf("%% above the mean  step: mean   most  after every microbatch: mean\n");
  for (const int64_t samples : {4, 8, 16, 32, 64})
    for (const bool balance : {true, false}) {
      const zea::Summary found = zea::measure(config.str(), samples, balance);
      std::printf("%3d %-8s %16.2f %6.2f %25.2f\n", static_cast<int>(samples),
                  balance ? "by cost" : "in turn", 100 * found.mean, 100 * found.most,
                  100 * found.waiting);
      holds = holds && (!balance || samples < 16 || found.most <= 0.03);
    }
  return holds ? 0 : 1;
}
