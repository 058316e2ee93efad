// SPDX-License-Identifier: Apache-2.0
// B-trees of both versions (III.A), read whole: old ones list groups and chunks, new ones what lies
// in heaps, and chunks.
#pragma once

#include <map>
#include <memory>
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

/// Returns the children of an old tree's leaves, each with the key before it.
std::vector<H5Leaf> read_h5_leaves(const H5Bytes& file, uint64_t address, H5BTree1 type,
                                   size_t key_bytes);

/// The records of a new tree.
std::vector<std::string> read_h5_records(const H5Bytes& file, uint64_t address, H5BTree2 type,
                                         size_t min_bytes);

// Heaps: names of an old group in a local one (III.D), links and attributes of a new object, once
// they are many, in a fractal one (III.G). Both give every part of theirs only once.

class H5LocalHeap {
 public:
  H5LocalHeap(const H5Bytes& file, uint64_t address);
  /// Up to the NUL behind it.
  std::string name(uint64_t offset);

 private:
  const H5Bytes& file_;
  std::string bytes_;
  H5Parts names_;
};

/// A tree of blocks that double in size. Objects of up to a certain size lie in direct blocks,
/// others by themselves, listed in a B-tree.
class H5FractalHeap {
 public:
  H5FractalHeap(const H5Bytes& file, uint64_t address);
  /// Bytes of an object's id in the heap.
  uint64_t id_bytes() const { return id_bytes_; }
  /// Where an object lies, which `id` tells, and what it is.
  std::string object(std::string_view id);

 private:
  /// A direct block, and from which place of the heap on it holds it.
  struct Block {
    uint64_t address, begin;
    std::string bytes;
  };
  void read_table(H5Cursor& cursor);
  std::string managed(uint64_t offset, uint64_t length);
  std::string huge(uint64_t number);
  const Block& block_of(uint64_t offset);
  /// The entry of an indirect block at `address` that has `offset`: its own begin, and its row.
  struct Entry {
    uint64_t address, begin, row;
  };
  Entry entry_of(uint64_t address, uint64_t begin, uint64_t rows, uint64_t offset);
  const Block& direct_block(uint64_t address, uint64_t begin, uint64_t bytes);
  uint64_t row_bytes(uint64_t row) const {
    return row == 0 ? first_bytes_ : first_bytes_ << (row - 1);
  }

  const H5Bytes& file_;
  uint64_t address_;
  uint64_t id_bytes_ = 0, flags_ = 0, max_managed_ = 0, huge_tree_ = kH5Undefined;
  uint64_t width_ = 0, first_bytes_ = 0, max_direct_ = 0, root_ = kH5Undefined, root_rows_ = 0;
  size_t offset_bytes_ = 0, length_bytes_ = 0;
  std::map<uint64_t, Block> blocks_;          ///< direct ones, by begin
  std::map<uint64_t, std::string> indirect_;  ///< by address
  bool has_huge_ = false;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> huge_;  ///< address and bytes by number
  H5Parts parts_, managed_, huge_parts_;
};

// Arrays that tell where chunks lie, each in a slot of its own: of a dataset of fixed dims, and of
// one that can grow (VII.C, VII.D).

/// Addresses in all slots; kH5Undefined in one that was never written.
std::vector<uint64_t> read_h5_fixed_array(const H5Bytes& file, uint64_t address);
/// The same of the first `count` slots.
std::vector<uint64_t> read_h5_extensible_array(const H5Bytes& file, uint64_t address,
                                               uint64_t count);

}  // namespace zea
