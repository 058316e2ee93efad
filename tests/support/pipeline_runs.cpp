// SPDX-License-Identifier: Apache-2.0
#include "support/pipeline_runs.hpp"

#include "support/expert_layout.hpp"

namespace zea::testing {
namespace {

constexpr int64_t kSamples = 20, kSteps = 3;

}  // namespace

MemoryDataset dataset_of(const PipelineLayout& layout, uint64_t others) {
  ModelSpec model = make_model_spec(config_of(layout));
  remake(layout, model);
  return make_tiny_dataset(model, kSamples, images_of(layout), 5 + others, clips_of(layout));
}

TinyRunOptions run_of(const PipelineLayout& layout, const Options& deck) {
  TinyRunOptions run;
  run.config_json = config_of(layout);
  run.remake = [&layout](ModelSpec& model) { remake(layout, model); };
  if (layout.twist == Twist::Skewed) run.fill = zero_routers;
  run.steps = kSteps;
  run.deck = deck;
  return run;
}

}  // namespace zea::testing
