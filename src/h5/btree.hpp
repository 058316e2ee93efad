// SPDX-License-Identifier: Apache-2.0
// B-trees of both versions (III.A), read whole: old ones list groups and chunks, new ones what lies
// in heaps, and chunks.
#pragma once

#include <string>
#include <vector>

#include "h5/bytes.hpp"

namespace zea {

enum class H5BTree1 : uint64_t { Group = 0, Chunks = 1 };
enum class H5BTree2 : uint64_t { HugeObjects = 1, Links = 5, Attributes = 8, Chunks = 10 };

struct H5Leaf {
  std::string key;
  uint64_t child;  ///< an address
};

/// What the leaves of an old tree lead to, each with the key before it.
std::vector<H5Leaf> read_h5_leaves(const H5Bytes& file, uint64_t address, H5BTree1 type,
                                   size_t key_bytes);

/// The records of a new tree.
std::vector<std::string> read_h5_records(const H5Bytes& file, uint64_t address, H5BTree2 type,
                                         size_t min_bytes);

}  // namespace zea
