// SPDX-License-Identifier: Apache-2.0
#include "train/training_data.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "batch/make_microbatch.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

constexpr int64_t kMostSteps = 4;
constexpr int64_t kMostSamples = 1024;  ///< except for a single step

/// Returns the global batch of each step.
std::vector<Ids> draw_batches(const Plan& plan, const Dataset& dataset, int64_t first_step) {
  const Options& options = plan.options;
  const int64_t batch = options.schedule.global_batch;
  int64_t steps = std::clamp<int64_t>(kMostSamples / batch, 1, kMostSteps);
  std::vector<Ids> batches;
  if (options.run.mode == RunMode::Train) {
    steps = std::clamp<int64_t>(options.schedule.steps - first_step, 1, steps);
    Sampler sampler = make_sampler(options, dataset);
    for (int64_t step = first_step; step < first_step + steps; ++step)
      batches.push_back(sampler.global_batch(step));
    return batches;
  }
  const int64_t available = std::ssize(dataset.index()), asked = options.eval.samples;
  const int64_t samples = asked > 0 ? std::min(asked, available) : available;
  for (int64_t begin = 0; begin < samples && std::ssize(batches) < steps; begin += batch) {
    Ids& ids = batches.emplace_back(static_cast<size_t>(std::min(batch, samples - begin)));
    std::iota(ids.begin(), ids.end(), begin);
  }
  return batches;
}

/// The samples of some batches, numbered in order of appearance.
struct Drawn {
  const Dataset& dataset;
  const ModelSpec model;
  Ids ids = {};                             ///< of each number
  std::map<int64_t, int64_t> numbers = {};  ///< of each id
  std::map<int64_t, MicrobatchTokens> read = {};

  int64_t number_of(int64_t id) {
    const auto [found, is_new] = numbers.emplace(id, std::ssize(ids));
    if (is_new) ids.push_back(id);
    return found->second;
  }
  const MicrobatchTokens& tokens(int64_t number) {
    const auto found = read.find(number);
    if (found != read.end()) return found->second;
    const Sample sample = dataset.read(ids[static_cast<size_t>(number)]);
    return read[number] = tokens_of({sample}, model);
  }
};

}  // namespace

Sampler make_sampler(const Options& options, const Dataset& dataset) {
  std::vector<SampledSet> sets;
  for (const int64_t samples : dataset.set_samples()) sets.push_back({samples});
  for (size_t set = 0; sets.size() > 1 && set < sets.size(); ++set)
    sets[set].weight = options.data.train.sets.at(set).weight;
  return Sampler(sets, options.schedule.global_batch, static_cast<uint64_t>(options.run.seed),
                 options.data.shuffle);
}

StepSamples draw_samples(const Plan& plan, const Dataset& dataset, const std::string& key,
                         int64_t first_step) {
  const auto drawn = std::make_shared<Drawn>(Drawn{dataset, plan.model});
  StepSamples samples;
  samples.is_real = true;
  samples.first_step = first_step;
  samples.batches = draw_batches(plan, dataset, first_step);
  samples.source =
      key + " (" + dataset.describe() + ", " + std::to_string(dataset.index().size()) + " samples)";
  for (Ids& batch : samples.batches)
    for (int64_t& id : batch) id = drawn->number_of(id);
  for (const int64_t id : drawn->ids) samples.index.add(dataset.index()[static_cast<size_t>(id)]);
  samples.tokens = [drawn](int64_t number) { return drawn->tokens(number); };
  return samples;
}

}  // namespace zea
