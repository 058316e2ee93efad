// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace zea {

/// What the items of an encoder are; also their number in data sets.
enum class Modality : uint8_t { Image = 0, Audio = 1 };

inline const char* modality_name(Modality modality) {
  return modality == Modality::Audio ? "audio" : "image";
}

}  // namespace zea
