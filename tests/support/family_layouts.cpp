// SPDX-License-Identifier: Apache-2.0
#include "support/family_layouts.hpp"

#include <algorithm>

namespace zea::testing {
namespace {

ModelSpec spec_of(const MeasuredModel& model) {
  ModelSpec spec = make_model_spec(model.config);
  if (model.remake != nullptr) model.remake(spec);
  return spec;
}

void set_grid(const ModelSpec& model, Options& deck) {
  for (const std::string& module : model.modules()) {
    if (model.block(module).conformer) continue;  // its clips are dealt to all ranks
    ModuleMeshOptions& mesh = deck.meshes[module];
    mesh.tp = 2;
    mesh.cp = kFamilyRanks / mesh.tp;
    mesh.cp_mode = "ring";
    mesh.cp_block = 8;
  }
}

void set_stages(const ModelSpec& model, Options& deck) {
  deck.meshes[kDecoder].pp = 2;
  for (const EncoderSpec& encoder : model.encoders) {
    deck.mesh.placement = "disjoint";
    deck.meshes[encoder.name].encoder_dp = 2 / static_cast<int>(model.encoders.size());
  }
}

}  // namespace

TinyRunOptions FamilyLayout::run_on_one_rank() const {
  TinyRunOptions run;
  run.config_json = model->config;
  if (model->remake != nullptr) run.remake = model->remake;
  run.steps = 2;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 400;
  run.deck.data.rows_per_microbatch = 1;
  run.deck.optim.lr = 1e-2;
  // Their gradients are large, so that Adam would turn rounding errors into updates.
  if (model->name.find("gemma4") == 0) run.deck.optim.eps = 1;
  run.deck.optim.warmup_steps = 2;
  run.deck.optim.clip_norm = 0.5;
  run.deck.schedule = {.steps = run.steps, .global_batch = 6};
  for (const EncoderSpec& encoder : spec_of(*model).encoders)
    run.deck.encoders[encoder.name].train = !is_pipeline;
  return run;
}

TinyRunOptions FamilyLayout::run() const {
  TinyRunOptions run = run_on_one_rank();
  (is_pipeline ? set_stages : set_grid)(spec_of(*model), run.deck);
  return run;
}

MemoryDataset FamilyLayout::dataset() const {
  return make_tiny_dataset(spec_of(*model), 10, {1, 0, 1}, 5);
}

const std::vector<FamilyLayout>& family_layouts() {
  static const std::vector<FamilyLayout> all = [] {
    std::vector<FamilyLayout> layouts;
    for (const MeasuredModel& model : measured_models())
      for (const bool is_pipeline : {false, true}) layouts.push_back({&model, is_pipeline});
    return layouts;
  }();
  return all;
}

std::vector<FamilyFeature> features_of(const Plan& plan) {
  std::vector<FamilyFeature> found;
  const auto add = [&](FamilyFeature feature, bool is_there) {
    if (is_there) found.push_back(feature);
  };
  const Options& deck = plan.options;
  const ModuleMeshOptions& llm = deck.meshes[kDecoder];
  add(FamilyFeature::Tp, llm.tp > 1);
  add(FamilyFeature::Cp, llm.cp > 1);
  add(FamilyFeature::Pp, llm.pp > 1);
  add(FamilyFeature::OwnRanks, deck.mesh.placement == ModulePlacement::Disjoint);
  add(FamilyFeature::FrozenEncoder, std::ranges::any_of(plan.model.params, [](const auto& param) {
        return param.used && !param.trainable && param.module != kDecoder;
      }));
  return found;
}

bool lacks(const ModelSpec& model, FamilyFeature feature) {
  const bool is_of_encoders =
      feature == FamilyFeature::OwnRanks || feature == FamilyFeature::FrozenEncoder;
  return is_of_encoders && model.encoders.empty();
}

}  // namespace zea::testing
