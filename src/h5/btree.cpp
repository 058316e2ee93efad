// SPDX-License-Identifier: Apache-2.0
#include "h5/btree.hpp"

#include <limits>

namespace zea {
namespace {

constexpr const char* kTree = "B-tree";
constexpr uint64_t kMaxTreeDepth = 32;

/// Version 1: nodes of keys with children between them.
class OldTree {
 public:
  OldTree(const H5Bytes& file, H5BTree1 type, size_t key_bytes)
      : file_(file), type_(type), key_bytes_(key_bytes) {}

  void read(uint64_t address, uint64_t level, bool is_root) {
    constexpr uint64_t kHead = 24;
    const std::string head = file_.at(address, kHead, kTree);
    H5Cursor cursor(file_, kTree, address, head);
    cursor.expect("TREE");
    cursor.expect(static_cast<uint64_t>(type_), 1, "type");
    const uint64_t found = cursor.number(1), entries = cursor.number(2);
    if (is_root ? found > kMaxTreeDepth : found != level)
      cursor.refuse("is at level " + std::to_string(found) + " where none is");
    const uint64_t bytes = kHead + entries * (key_bytes_ + kH5Address);
    parts_.add(file_, kTree, address, bytes);
    const std::string node = file_.at(address, bytes, kTree);
    H5Cursor pairs(file_, kTree, address, std::string_view(node).substr(kHead));
    for (uint64_t e = 0; e < entries; ++e) {
      const std::string key(pairs.take(key_bytes_));
      const uint64_t child = pairs.address();
      if (found == 0) {
        leaves_.push_back({key, child});
      } else {
        read(child, found - 1, false);
      }
    }
  }
  std::vector<H5Leaf> take() { return std::move(leaves_); }

 private:
  const H5Bytes& file_;
  H5BTree1 type_;
  size_t key_bytes_;
  H5Parts parts_;
  std::vector<H5Leaf> leaves_;
};

uint64_t saturated(uint64_t factor, uint64_t other, uint64_t more) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(factor, other, &result) ||
      __builtin_add_overflow(result, more, &result))
    return std::numeric_limits<uint64_t>::max();
  return result;
}

/// Version 2: how wide the counts beside children are follows from how many records nodes hold.
class NewTree {
 public:
  NewTree(const H5Bytes& file, uint64_t address, H5BTree2 type, size_t min_bytes) : file_(file) {
    constexpr uint64_t kBytes = 38;
    const std::string head = file.checked(address, kBytes, kTree);
    H5Cursor cursor(file, kTree, address, head);
    type_ = static_cast<uint64_t>(type);
    cursor.expect("BTHD");
    cursor.expect_version(0);
    cursor.expect(type_, 1, "type");
    node_bytes_ = cursor.number(4);
    record_bytes_ = cursor.number(2);
    depth_ = cursor.number(2);
    cursor.skip(2);  // when nodes are split and merged
    root_ = cursor.address();
    root_records_ = cursor.number(2);
    if (record_bytes_ < min_bytes || node_bytes_ < kNode + record_bytes_ || depth_ > kMaxTreeDepth)
      cursor.refuse("has nodes too small for its records, or too many levels");
    add_levels(cursor);
  }

  std::vector<std::string> records() {
    if (root_ != kH5Undefined) read(root_, root_records_, depth_);
    return std::move(records_);
  }

 private:
  static constexpr uint64_t kHead = 6, kNode = kHead + kH5Sum;

  /// Of a level: bytes of the counts beside its nodes' addresses in the level above.
  struct Level {
    uint64_t count_bytes, total_bytes;
  };

  void add_levels(const H5Cursor& cursor) {
    const uint64_t in_leaf = (node_bytes_ - kNode) / record_bytes_;
    uint64_t total = in_leaf;
    levels_.push_back({h5_width(in_leaf), 0});
    for (uint64_t d = 1; d <= depth_; ++d) {
      const uint64_t child = kH5Address + levels_[0].count_bytes + levels_[d - 1].total_bytes;
      if (node_bytes_ < kNode + child + record_bytes_)
        cursor.refuse("has nodes that are too small");
      const uint64_t most = (node_bytes_ - kNode - child) / (record_bytes_ + child);
      total = saturated(most + 1, total, most);
      levels_.push_back({levels_[0].count_bytes, h5_width(total)});
    }
  }

  void read(uint64_t address, uint64_t count, uint64_t depth) {
    const uint64_t child_bytes =
        depth == 0 ? 0 : kH5Address + levels_[0].count_bytes + levels_[depth - 1].total_bytes;
    const uint64_t children = depth == 0 ? 0 : count + 1;
    const uint64_t bytes = kNode + count * record_bytes_ + children * child_bytes;
    parts_.add(file_, kTree, address, bytes);
    const std::string node = file_.checked(address, bytes, kTree);
    H5Cursor cursor(file_, kTree, address, node);
    cursor.expect(depth == 0 ? "BTLF" : "BTIN");
    cursor.expect_version(0);
    cursor.expect(type_, 1, "type");
    for (uint64_t r = 0; r < count; ++r) records_.emplace_back(cursor.take(record_bytes_));
    for (uint64_t c = 0; c < children; ++c) {
      const uint64_t child = cursor.address(), held = cursor.number(levels_[0].count_bytes);
      cursor.skip(levels_[depth - 1].total_bytes);
      read(child, held, depth - 1);
    }
  }

  const H5Bytes& file_;
  uint64_t type_ = 0, node_bytes_ = 0, record_bytes_ = 0, depth_ = 0, root_ = 0, root_records_ = 0;
  std::vector<Level> levels_;
  H5Parts parts_;
  std::vector<std::string> records_;
};

}  // namespace

std::vector<H5Leaf> read_h5_leaves(const H5Bytes& file, uint64_t address, H5BTree1 type,
                                   size_t key_bytes) {
  OldTree tree(file, type, key_bytes);
  tree.read(address, 0, true);
  return tree.take();
}

std::vector<std::string> read_h5_records(const H5Bytes& file, uint64_t address, H5BTree2 type,
                                         size_t min_bytes) {
  return NewTree(file, address, type, min_bytes).records();
}

}  // namespace zea
