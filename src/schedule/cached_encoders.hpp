// SPDX-License-Identifier: Apache-2.0
// data.cache_features: which encoders do not run while the model trains, because what they make of
// an item is always the same.
#pragma once

#include "core/error.hpp"
#include "deck/options.hpp"
#include "schedule/pipeline.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_rules.hpp"

namespace zea::detail {

/// Marks those of which nothing trains, where the deck asks for it.
void mark_cached_encoders(const Options& options, ModelSpec& model);

/// Refuses the key where no encoder is frozen, and notes those that are not beside one that is.
void check_cached_encoders(Faults& faults, const Options& options, const ModelSpec& model,
                           const std::vector<ParamRule>& rules);

/// What projectors read of an encoder is written together, so it stands in one stage.
void check_cached_stages(Faults& faults, const ModelSpec& model, const Pipeline& pipeline);

}  // namespace zea::detail
