// SPDX-License-Identifier: Apache-2.0
// The readers of encoded items for programs in other languages: jobs/packing/decoding.py asks by it
// whether training will be able to decode what it packs.
#include <algorithm>
#include <cstring>
#include <exception>

#include "data/audio.hpp"
#include "data/image.hpp"

/// Decodes a picture of at most `limit` pixels, or a clip of at most `limit` seconds. 0: it can be
/// decoded; 1: it cannot, and `message`, of `capacity` bytes, says why.
extern "C" int zea_check_item(const uint8_t* bytes, size_t count, int is_sound, int64_t limit,
                              char* message, size_t capacity) {
  try {
    if (is_sound)
      zea::decode_audio({bytes, count}, limit);
    else
      zea::decode_image({.bytes = {bytes, bytes + count}}, limit);
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), capacity - 1);
    message[capacity - 1] = '\0';
    return 1;
  }
}
