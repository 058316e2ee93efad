// SPDX-License-Identifier: Apache-2.0
// The config.json of a tiny Kimi-K2.5.
#pragma once

#include <string>

#include "support/tiny_llava.hpp"

namespace zea::testing {

/// Patches of 4 x 4 pixels, of which squares of 2 x 2 become features, a table of 5 x 5 positions,
/// heads of 8 coordinates, placeholder id 3; a dense block with latent attention, and one of 8
/// experts in groups. `is_running`: queries, keys and experts are those of transformers' running
/// model.
std::string tiny_kimi_k25_config(const TinyLlava& options = {}, bool is_running = false);

}  // namespace zea::testing
