// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace zea {

/// A key of zea's own in a config: what generation_config.json, beside config.json, says of the
/// tokens that end a text.
inline constexpr const char* kGenerationConfig = "generation_config";

}  // namespace zea
