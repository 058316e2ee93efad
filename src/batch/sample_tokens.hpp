// SPDX-License-Identifier: Apache-2.0
// Plans read these of samples: whose tokens they are, and which are predicted.
#pragma once

#include <vector>

#include "data/dataset.hpp"
#include "layout/microbatch_rows.hpp"

namespace zea {

/// Samples one after the other; their items' contents are not needed. Throws as make_microbatch()
/// does.
MicrobatchTokens tokens_of(const std::vector<Sample>& samples, const ModelSpec& model);

}  // namespace zea
