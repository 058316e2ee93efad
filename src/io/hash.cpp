// SPDX-License-Identifier: Apache-2.0
// XXH3-128 (xxHash, Yann Collet): as fast as memory, and wide enough that damage never goes unseen.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "zea/io/manifest.hpp"

namespace zea {

std::string hash_bytes(const void* data, int64_t bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, static_cast<size_t>(bytes)));
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::vector<std::string> hash_blocks(const void* data, int64_t bytes) {
  std::vector<std::string> hashes;
  for (int64_t begin = 0; begin < bytes; begin += kHashBlockBytes)
    hashes.push_back(hash_bytes(static_cast<const char*>(data) + begin,
                                std::min(kHashBlockBytes, bytes - begin)));
  return hashes;
}

}  // namespace zea
