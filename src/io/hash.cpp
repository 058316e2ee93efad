// SPDX-License-Identifier: Apache-2.0
// XXH3-128 (xxHash, Yann Collet): as fast as memory, and wide enough that damage never goes unseen.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/error.hpp"
#include "io/manifest.hpp"

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

int64_t num_blocks(const Piece& piece) {
  const int64_t in_block = block_elements(piece.dtype);
  return (piece.extent.elements() + in_block - 1) / in_block;
}

void size_hashes(Piece& piece) {
  piece.block_hashes.resize(static_cast<size_t>(num_blocks(piece)));
}

void hash_part(Piece& piece, int64_t first, int64_t count, const void* data) {
  const int64_t in_block = block_elements(piece.dtype);
  ZEA_ASSERT(first % in_block == 0);
  auto number = static_cast<size_t>(first / in_block);
  const int64_t bytes = count * static_cast<int64_t>(element_bytes(piece.dtype));
  for (std::string& hash : hash_blocks(data, bytes))
    piece.block_hashes.at(number++) = std::move(hash);
}

}  // namespace zea
