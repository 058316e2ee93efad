// SPDX-License-Identifier: Apache-2.0
// A model with adapters (spec/adapters.hpp) as one without: W + scale B A in place of W.
#pragma once

#include <memory>

#include "io/weights_source.hpp"

namespace zea {

/// `source` itself where its model has no adapters.
std::unique_ptr<WeightsSource> merge_adapters(std::unique_ptr<WeightsSource> source);

}  // namespace zea
