// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: what makes a directory of shard files one checkpoint. It names
// every piece (file, dataset, box of the global tensor, element type, hashes per block), every file
// with a hash of the rest of it, the run's state, and its own digest last. A directory
// `step-00000200` with a manifest inside is complete; anything else is not a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zea/checkpoint.hpp"

namespace zea {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kViewFile = "model.h5";
inline constexpr const char* kManifestFormat = "zea.checkpoint";
inline constexpr const char* kManifestVersion = "2";
/// Read, no longer written: its files have no rest_hash.
inline constexpr const char* kFirstManifestVersion = "1";

inline constexpr int64_t kHashBlockBytes = 4 << 20;

/// JSON text of kManifestVersion, its last member "digest" being the XXH3-128 of all before it.
std::string manifest_text(const Manifest& manifest);

/// Reads and checks text: digest, version, types, ranges, plain file names. `where` is for
/// messages. WeightsError.
Manifest parse_manifest(const std::string& text, const std::string& where);

/// Throws WeightsError naming the tensor unless the parameter pieces of every tensor cover it
/// exactly once, and so does each state of every trained one that its optimizer keeps.
void check_coverage(const Manifest& manifest);

/// Elements of `dtype` in one hashed block.
int64_t block_elements(DType dtype);

/// XXH3-128 of `bytes`, as 32 hexadecimal digits.
std::string hash_bytes(const void* data, int64_t bytes);

inline std::string hash_text(const std::string& text) {
  return hash_bytes(text.data(), std::ssize(text));
}

/// XXH3-128 of each block of `bytes`.
std::vector<std::string> hash_blocks(const void* data, int64_t bytes);

/// Hashed blocks of a piece.
int64_t num_blocks(const Piece& piece);

/// Makes room for the hashes of a piece that is to be written in parts.
void size_hashes(Piece& piece);

/// Fills in the hashes of the blocks of elements [first, first + count); `first` starts a block.
void hash_part(Piece& piece, int64_t first, int64_t count, const void* data);

}  // namespace zea
