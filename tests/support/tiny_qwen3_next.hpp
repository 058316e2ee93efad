// SPDX-License-Identifier: Apache-2.0
// Configs of tiny models whose layers mix tokens by the gated delta rule or by gated attention.
#pragma once

#include <string>

namespace zea::testing {

/// Text alone: `family` is qwen3_next, qwen3_5_text or qwen3_5_moe_text. The second of its layers
/// has attention, the others have none.
std::string tiny_hybrid_config(const std::string& family, int64_t layers = 3);

/// With the tower of images and videos: qwen3_5 or qwen3_5_moe.
std::string tiny_qwen3_5_config(const std::string& family = "qwen3_5", int64_t layers = 3);

}  // namespace zea::testing
