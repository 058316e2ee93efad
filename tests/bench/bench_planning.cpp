// SPDX-License-Identifier: Apache-2.0
// Measures the time that a rank takes to plan a step: a model's config, one rank per replica or a
// second one for its encoder, with the same number of samples for each. Prints the least
// milliseconds of nine steps: drawing and distributing the global batch, which is the same work for
// all ranks, and this rank's own part of the step.
//
// usage: bench_planning CONFIG.json [SAMPLES_PER_REPLICA]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "core/system.hpp"
#include "data/sampler.hpp"
#include "schedule/plan.hpp"

namespace zea {
namespace {

struct Layout {
  int replicas, shards;
  bool disjoint = false;
};

Options deck_of(const Layout& layout, int64_t samples) {
  const auto [replicas, shards, disjoint] = layout;
  Options deck;
  if (disjoint) {
    deck.mesh.placement = "disjoint";
    deck.meshes["vision"].encoder_dp = 1;
  }
  deck.mesh.dp_shard = shards;
  deck.mesh.dp_replicate = replicas / shards;
  deck.meshes["llm"].strategy = deck.meshes["vision"].strategy =
      shards == replicas ? "full_shard" : "hybrid_shard";
  deck.schedule.global_batch = replicas * samples;
  deck.data.row_tokens = 2048;
  return deck;
}

/// Every other sample has an image.
std::vector<SampleIndex> index_of(int64_t samples) {
  std::mt19937_64 random(1);
  std::vector<SampleIndex> index;
  for (int64_t i = 0; i < samples; ++i) {
    const auto images = static_cast<int64_t>(random() % 2);
    index.push_back({100 + static_cast<int64_t>(random() % 600), images, 50});
  }
  return index;
}

double least_ms(const std::vector<double>& seconds) {
  return 1e3 * *std::min_element(seconds.begin(), seconds.end());
}

void measure(const std::string& config, const Layout& layout, int64_t samples) {
  const int world_size = layout.replicas * (layout.disjoint ? 2 : 1);
  const Plan plan = make_plan(deck_of(layout, samples), config, world_size);
  const int64_t batch = plan.options.schedule.global_batch;
  const std::vector<SampleIndex> index = index_of(4 * batch);
  Sampler sampler(4 * batch, batch, 1, true);
  sampler.global_batch(0);
  std::vector<double> dealing, own;
  for (int64_t step = 0; step < 9; ++step) {
    const Stopwatch deals;
    const StepPlan dealt = plan.step_plan(step, sampler.global_batch(step), index);
    dealing.push_back(deals.seconds());
    const Stopwatch walks;
    const RankStep part = plan.rank_step(dealt, 0);
    own.push_back(walks.seconds());
    if (part.schedule.actions.empty()) std::abort();
  }
  std::printf("%8d %8d %8s %10.2f %10.2f\n", layout.replicas, layout.shards,
              layout.disjoint ? "2" : "1", least_ms(dealing), least_ms(own));
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::stringstream config;
  config << std::ifstream(argv[1]).rdbuf();
  const int64_t samples = argc > 2 ? std::atoll(argv[2]) : 16;
  std::printf("replicas   shards    ranks    dealing   own part\n");
  for (const int replicas : {8, 64, 512, 4096})
    for (const zea::Layout layout :
         {zea::Layout{replicas, replicas}, {replicas, 8}, {replicas, 8, true}})
      zea::measure(config.str(), layout, samples);
}
