// SPDX-License-Identifier: Apache-2.0
#include "schedule/cached_encoders.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

bool asks(const Options& options) {
  return !options.data.cache_features.empty() && options.run.mode == RunMode::Train;
}

/// Parameters of an encoder's blocks and of what stands before them that train.
std::vector<int> trained_params(const ModelSpec& model, int encoder) {
  std::vector<int> trained;
  for (const UnitSpec& unit : model.units)
    if (unit.encoder == encoder && unit.kind != UnitKind::Projector)
      std::ranges::copy_if(unit.params, std::back_inserter(trained),
                           [&](int param) { return model.params[param].trainable; });
  return trained;
}

/// Why the features of an encoder change from step to step.
std::string why_not(const ModelSpec& model, int encoder, const std::vector<ParamRule>& rules) {
  const std::string& name = model.encoders[static_cast<size_t>(encoder)].name;
  const auto is_adapted = [&](const UnitSpec& unit) {
    return unit.encoder == encoder && unit.kind != UnitKind::Projector && !unit.adapters.empty();
  };
  if (std::ranges::any_of(model.units, is_adapted))
    return name + " has adapters ([model." + name + ".lora])";
  const auto waits = [&](int param) {
    return rules[static_cast<size_t>(param)].frozen_updates > 0;
  };
  if (std::ranges::all_of(trained_params(model, encoder), waits))
    return name + " trains later (optim.frozen has a number of updates)";
  return name + " trains (model." + name + ".train = true)";
}

}  // namespace

void mark_cached_encoders(const Options& options, ModelSpec& model) {
  for (size_t e = 0; e < model.encoders.size(); ++e)
    model.encoders[e].is_cached =
        asks(options) && trained_params(model, static_cast<int>(e)).empty();
}

void check_cached_encoders(Faults& faults, const Options& options, const ModelSpec& model,
                           const std::vector<ParamRule>& rules) {
  if (options.data.cache_features.empty()) return;
  const std::string setting = "data.cache_features = \"" + options.data.cache_features + "\"";
  if (!asks(options))
    return faults.note(setting + " has no effect with run.mode = \"" + options.run.mode +
                       "\": it keeps features of data.train");
  if (model.encoders.empty())
    return faults.add(setting + ", but the model (" + model.family +
                      ") has no encoder; leave it out");
  std::string reasons;
  for (size_t e = 0; e < model.encoders.size(); ++e)
    if (!model.encoders[e].is_cached)
      reasons += (reasons.empty() ? "" : ", ") + why_not(model, static_cast<int>(e), rules);
  if (std::ranges::none_of(model.encoders, &EncoderSpec::is_cached))
    faults.add(setting + ", but " + reasons +
               ", so its features are others after every step; freeze it, or leave the key out");
  else if (!reasons.empty())
    faults.note(setting + " keeps features of frozen encoders alone: " + reasons);
}

void check_cached_stages(Faults& faults, const ModelSpec& model, const Pipeline& pipeline) {
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const std::vector<int> units = model.read_by_projectors(static_cast<int>(e));
    const auto stands_apart = [&](int unit) {
      return pipeline.place_of_unit(unit) != pipeline.place_of_unit(units.front());
    };
    if (model.encoders[e].is_cached && std::ranges::any_of(units, stands_apart))
      faults.add("data.cache_features with mesh." + model.encoders[e].name +
                 ".pp: the features of several depths that " + model.family +
                 " reads lie in several stages, whose ranks cannot write them together; use pp = 1 "
                 "for the encoder, or leave the key out");
  }
}

}  // namespace zea::detail
