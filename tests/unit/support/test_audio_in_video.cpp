// SPDX-License-Identifier: Apache-2.0
// Checks that the tables of layouts train on videos with interleaved audio tracks (Qwen-Omni) on
// every axis.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support/family_layouts.hpp"
#include "support/grid_scenarios.hpp"
#include "support/pipeline_runs.hpp"

namespace zea::testing::test_audio_in_video {
namespace {

using Axes = std::set<std::string>;

Axes axes_of(const Plan& plan) {
  const ModuleMeshOptions& llm = plan.options.meshes[kDecoder];
  Axes found;
  if (llm.tp > 1) found.insert("tp");
  if (llm.cp > 1) found.insert(std::string("cp ") + llm.cp_mode);
  if (llm.pp > 1) found.insert("pp");
  if (llm.ep > 1) found.insert("ep");
  if (plan.options.mesh.placement == ModulePlacement::Disjoint) found.insert("own ranks");
  return found;
}

/// Whether features of a video are on both sides of its audio track's, without text between.
bool has_audio_in_video(const std::vector<int32_t>& tokens, const ModelSpec& model) {
  bool is_after_video = false, is_after_track = false;
  for (const int32_t token : tokens) {
    const auto& encoders = model.encoders;
    const bool is_video = std::ranges::count(encoders, token, &EncoderSpec::video_placeholder) > 0;
    const bool is_audio = std::ranges::any_of(encoders, [&](const EncoderSpec& encoder) {
      return encoder.modality() == Modality::Audio && encoder.placeholder == token;
    });
    if (is_video && is_after_track) return true;
    is_after_track = is_audio && is_after_video;
    is_after_video = is_video || is_after_track;
  }
  return false;
}

/// Whether a step of the run has such a video.
bool trains_on_audio_in_video(const TinyRunOptions& run, const MemoryDataset& dataset,
                              const ModelSpec& model) {
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), run.deck.schedule.global_batch,
                  run.deck.run.seed, run.deck.data.shuffle);
  for (int64_t step = 0; step < run.steps; ++step)
    for (const int64_t id : sampler.global_batch(step))
      if (has_audio_in_video(dataset.read(id).tokens, model)) return true;
  return false;
}

/// The axes of the runs that train on such a video, by family.
class Met {
 public:
  void add(const TinyRunOptions& run, int ranks, const MemoryDataset& dataset) {
    const Plan plan = plan_of(run, ranks);
    if (trains_on_audio_in_video(run, dataset, plan.model))
      axes_[plan.model.family].merge(axes_of(plan));
  }
  const Axes& axes(const std::string& family) { return axes_[family]; }

 private:
  std::map<std::string, Axes> axes_;
};

TEST(AudioInVideo, MeetsEveryAxisInTheTables) {
  Met met;
  for (const GridScenario& scenario : grid_scenarios())
    if (std::string(scenario.name).find("Omni") != std::string::npos)
      for (const Grid& grid : grids_for(scenario, false))
        met.add(run_of(scenario, grid), grid.ranks(), dataset_of(scenario, grid));
  for (const PipelineLayout& layout : pipelines())
    if (layout.is_omni())
      met.add(run_of(layout, deck_of(layout)), layout.ranks(), dataset_of(layout));
  for (const FamilyLayout& layout : family_layouts())
    if (layout.model->name.find("omni") != std::string::npos)
      met.add(layout.run(), kFamilyRanks, layout.dataset());

  Axes all{"tp", "cp allgather_kv", "cp ring", "cp ulysses", "cp ulysses_ring", "pp", "own ranks"};
  EXPECT_EQ(met.axes("qwen2_5_omni_thinker"), all);
  all.insert("ep");
  EXPECT_EQ(met.axes("qwen3_omni_moe_thinker"), all);
}

}  // namespace
}  // namespace zea::testing::test_audio_in_video
