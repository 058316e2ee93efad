// SPDX-License-Identifier: Apache-2.0
// How large images and videos become, of how many parts, and who resizes them.
#pragma once

#include "core/error.hpp"
#include "deck/data_options.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

/// Puts what the deck says in place of what encoders have by themselves.
void set_item_limits(const DataOptions& data, ModelSpec& model);

/// Of a model that has them.
void check_item_limits(Faults& faults, const DataOptions& data, const ModelSpec& model);

}  // namespace zea::detail
