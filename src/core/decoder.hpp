// SPDX-License-Identifier: Apache-2.0
// Encoders have the names that a model's family gives them; its one decoder has this.
#pragma once

#include <string>

namespace zea {

/// The language model among a model's modules: in decks, logs and files.
inline const std::string kDecoder = "llm";

}  // namespace zea
