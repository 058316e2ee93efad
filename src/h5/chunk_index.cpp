// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>

#include "h5/object.hpp"
#include "h5/structures.hpp"

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

  /// Bytes of a level's counts, which stand with its nodes' addresses in the level above.
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

namespace {

constexpr const char* kArray = "index of chunks";
constexpr uint64_t kSlot = 8, kUnfiltered = 0, kBlockHead = 14;

using Slots = std::vector<uint64_t>;

/// Checks the signature and version of a header or a block.
void expect_kind(H5Cursor& cursor, const char* signature) {
  cursor.expect(signature);
  cursor.expect_version(0);
  cursor.expect(kUnfiltered, 1, "kind");
}

void expect_head(H5Cursor& cursor, const char* signature) {
  expect_kind(cursor, signature);
  cursor.expect(kSlot, 1, "slots of bytes");
}

/// Reads blocks of slots. One that is long comes in pages, each with a sum of its own.
class SlotReader {
 public:
  SlotReader(const H5Bytes& file, uint64_t header, uint64_t page_bits)
      : file_(file), header_(header), page_slots_(uint64_t{1} << page_bits) {}

  uint64_t pages(uint64_t count) const {
    return count > page_slots_ ? (count + page_slots_ - 1) / page_slots_ : 0;
  }

  /// Returns the contents of a block of `bytes` in all, without its head and checksum.
  std::string block(const char* signature, uint64_t address, uint64_t bytes) const {
    const std::string all = file_.checked(address, bytes, kArray);
    H5Cursor cursor(file_, kArray, address, all);
    expect_kind(cursor, signature);
    cursor.expect(header_, kH5Address, "header");
    return std::string(cursor.take(cursor.left()));
  }

  void add(uint64_t address, std::string_view bytes, uint64_t count, Slots& slots) const {
    H5Cursor cursor(file_, kArray, address, bytes);
    for (uint64_t s = 0; s < count; ++s) slots.push_back(cursor.address());
  }

  /// `is_written` has a bit for each page, the highest first.
  void add_pages(uint64_t address, uint64_t count, std::string_view is_written,
                 Slots& slots) const {
    for (uint64_t page = 0; page < pages(count); ++page) {
      const uint64_t held = std::min(page_slots_, count - page * page_slots_);
      const uint64_t bytes = held * kSlot + kH5Sum;
      if ((static_cast<uint8_t>(is_written.at(page / 8)) >> (7 - page % 8) & 1) != 0) {
        add(address, file_.checked(address, bytes, kArray), held, slots);
      } else {
        slots.resize(slots.size() + held, kH5Undefined);
      }
      address += bytes;
    }
  }

 private:
  const H5Bytes& file_;
  uint64_t header_, page_slots_;
};

/// Its slots stand in the index block, then in data blocks whose addresses stand there, then in
/// those of super blocks. Super block number n has 2^(n/2) data blocks of 2^((n+1)/2) times the
/// least number of slots; the first super blocks have no place of their own.
class ExtensibleArray {
 public:
  ExtensibleArray(const H5Bytes& file, uint64_t address, uint64_t wanted)
      : file_(file), wanted_(wanted) {
    constexpr uint64_t kHeader = 72, kCounts = 48;
    const std::string bytes = file.checked(address, kHeader, kArray);
    H5Cursor cursor(file, kArray, address, bytes);
    expect_head(cursor, "EAHD");
    max_bits_ = cursor.number(1);
    in_index_ = cursor.number(1);
    least_ = cursor.number(1);
    pointers_ = cursor.number(1);
    const uint64_t page_bits = cursor.number(1);
    cursor.skip(kCounts);
    index_ = cursor.address();
    if (!std::has_single_bit(least_) || !std::has_single_bit(pointers_) || max_bits_ > 48 ||
        page_bits > max_bits_ || least_ > uint64_t{1} << max_bits_)
      cursor.refuse("has blocks of impossible sizes");
    reader_ = std::make_unique<SlotReader>(file, address, page_bits);
  }

  Slots slots() {
    if (index_ == kH5Undefined) return {};
    const uint64_t supers = 1 + max_bits_ - std::bit_width(least_) + 1;
    const uint64_t inside = 2 * (std::bit_width(pointers_) - 1);  // supers without a place
    const uint64_t blocks = 2 * (pointers_ - 1);
    const uint64_t others = supers > inside ? supers - inside : 0;
    const uint64_t head = (in_index_ + blocks + others) * kSlot + kBlockHead + kH5Sum;
    const std::string bytes = reader_->block("EAIB", index_, head);
    H5Cursor cursor(file_, kArray, index_, bytes);
    reader_->add(index_, cursor.take(in_index_ * kSlot), in_index_, slots_);
    uint64_t left = blocks;
    for (uint64_t n = 0; n < inside; ++n)
      for (uint64_t b = 0; b < blocks_of(n) && left > 0; ++b, --left)
        add_block(cursor.address(), slots_of(n), "");
    for (uint64_t n = inside; n < supers; ++n) add_super(cursor.address(), n);
    return std::move(slots_);
  }

 private:
  static uint64_t blocks_of(uint64_t super) { return uint64_t{1} << (super / 2); }
  uint64_t slots_of(uint64_t super) const { return least_ << ((super + 1) / 2); }
  uint64_t offset_bytes() const { return (max_bits_ + 7) / 8; }

  /// `count` slots of which nothing was written, or that nobody asks for.
  bool skips(uint64_t address, uint64_t count) {
    if (slots_.size() >= wanted_) return true;
    if (address != kH5Undefined) return false;
    slots_.resize(slots_.size() + std::min(count, wanted_ - slots_.size()), kH5Undefined);
    return true;
  }

  void add_block(uint64_t address, uint64_t count, std::string_view is_written) {
    if (skips(address, count)) return;
    file_.position(address, count, kArray);
    const uint64_t own = is_written.empty() ? count : 0;
    const uint64_t head = kBlockHead + offset_bytes() + own * kSlot + kH5Sum;
    parts_.add(file_, kArray, address, head);
    const std::string bytes = reader_->block("EADB", address, head);
    reader_->add(address, std::string_view(bytes).substr(offset_bytes()), own, slots_);
    if (own == 0) reader_->add_pages(address + head, count, is_written, slots_);
  }

  void add_super(uint64_t address, uint64_t super) {
    const uint64_t blocks = blocks_of(super), count = slots_of(super);
    if (skips(address, blocks * count)) return;
    const uint64_t mask_bytes = (reader_->pages(count) + 7) / 8;
    const uint64_t masks = blocks * mask_bytes;
    file_.position(address, masks, kArray);
    const uint64_t head = kBlockHead + offset_bytes() + masks + blocks * kSlot + kH5Sum;
    parts_.add(file_, kArray, address, head);
    const std::string bytes = reader_->block("EASB", address, head);
    H5Cursor cursor(file_, kArray, address, std::string_view(bytes).substr(offset_bytes()));
    const std::string_view all_masks = cursor.take(masks);
    for (uint64_t b = 0; b < blocks; ++b)
      add_block(cursor.address(), count, all_masks.substr(b * mask_bytes, mask_bytes));
  }

  const H5Bytes& file_;
  uint64_t wanted_;
  uint64_t max_bits_ = 0, in_index_ = 0, least_ = 0, pointers_ = 0, index_ = 0;
  std::unique_ptr<SlotReader> reader_;
  H5Parts parts_;
  Slots slots_;
};

}  // namespace

std::vector<uint64_t> read_h5_fixed_array(const H5Bytes& file, uint64_t address) {
  constexpr uint64_t kHeader = 28;
  const std::string bytes = file.checked(address, kHeader, kArray);
  H5Cursor cursor(file, kArray, address, bytes);
  expect_head(cursor, "FAHD");
  const uint64_t page_bits = cursor.number(1), count = cursor.number(8), block = cursor.address();
  if (page_bits > 31 || count > file.file_bytes() / kSlot) cursor.refuse("is too large");
  if (block == kH5Undefined) return {};
  const SlotReader reader(file, address, page_bits);
  const uint64_t pages = reader.pages(count);
  const uint64_t own = pages > 0 ? (pages + 7) / 8 : count * kSlot;
  const uint64_t head = kBlockHead + own + kH5Sum;
  const std::string held = reader.block("FADB", block, head);
  Slots slots;
  if (pages == 0) reader.add(block, held, count, slots);
  reader.add_pages(block + head, count, held, slots);
  return slots;
}

std::vector<uint64_t> read_h5_extensible_array(const H5Bytes& file, uint64_t address,
                                               uint64_t count) {
  return ExtensibleArray(file, address, count).slots();
}

namespace {

constexpr const char* kChunkIndex = "index of chunks";
constexpr const char* kChunk = "chunk";

class ChunkIndex {
 public:
  ChunkIndex(const H5Bytes& file, const H5Layout& layout, const H5Space& space, const Shape& counts,
             uint64_t bytes)
      : file_(file),
        layout_(layout),
        space_(space),
        counts_(counts),
        most_(count_h5_chunks(layout, space.max_dims)),
        bytes_(bytes),
        positions_(static_cast<size_t>(num_elements(counts)), kH5Undefined) {}

  std::vector<uint64_t> positions() {
    using Index = H5Layout::Index;
    if (layout_.address == kH5Undefined) return std::move(positions_);
    if (layout_.index == Index::BTree1) read_old_tree();
    if (layout_.index == Index::BTree2) read_new_tree();
    if (layout_.index == Index::Single) put(Shape(counts_.size(), 0), layout_.address);
    if (layout_.index == Index::Implicit)
      for_each_slot(
          [&](uint64_t slot, const Shape& place) { put(place, layout_.address + slot * bytes_); });
    if (layout_.index == Index::FixedArray) take(read_h5_fixed_array(file_, layout_.address));
    if (layout_.index == Index::ExtensibleArray) {
      if (std::ranges::find(space_.max_dims, kH5Undefined) != space_.max_dims.begin())
        file_.refuse(kChunkIndex, layout_.address,
                     "is of a dataset that grows in another dim than its first");
      Shape last = counts_;
      for (int64_t& index : last) --index;
      const uint64_t slots = slot_of(last) + 1;
      if (slots > file_.file_bytes())
        file_.refuse(kChunkIndex, layout_.address, "is of more chunks than the file has bytes");
      take(read_h5_extensible_array(file_, layout_.address, slots));
    }
    return std::move(positions_);
  }

 private:
  /// Ignores what lies outside the dims, which may have shrunk.
  void put(const Shape& place, uint64_t address) {
    if (address == kH5Undefined) return;
    int64_t number = 0;
    for (size_t d = 0; d < counts_.size(); ++d) {
      if (place[d] < 0 || place[d] >= counts_[d]) return;
      number = number * counts_[d] + place[d];
    }
    positions_[static_cast<size_t>(number)] = file_.position(address, bytes_, kChunk);
  }

  void read_old_tree() {
    const size_t rank = counts_.size();
    for (const H5Leaf& leaf :
         read_h5_leaves(file_, layout_.address, H5BTree1::Chunks, 8 + 8 * (rank + 1))) {
      H5Cursor cursor(file_, kChunkIndex, layout_.address, leaf.key);
      cursor.expect(bytes_, 4, "chunks of bytes");
      cursor.skip(4);  // filters left out
      Shape place(rank);
      for (size_t d = 0; d < rank; ++d)
        place[d] = static_cast<int64_t>(cursor.number(8) / layout_.chunk[d]);
      put(place, leaf.child);
    }
  }

  void read_new_tree() {
    const size_t rank = counts_.size();
    for (const std::string& record :
         read_h5_records(file_, layout_.address, H5BTree2::Chunks, 8 + 8 * rank)) {
      H5Cursor cursor(file_, kChunkIndex, layout_.address, record);
      const uint64_t address = cursor.address();
      Shape place(rank);
      for (int64_t& index : place) index = static_cast<int64_t>(cursor.number(8));
      put(place, address);
    }
  }

  /// Slots of chunks are numbered in the largest dims that the dataset may have.
  uint64_t slot_of(const Shape& place) const {
    uint64_t slot = 0;
    for (size_t d = 0; d < most_.size(); ++d)
      slot = slot * static_cast<uint64_t>(most_[d]) + static_cast<uint64_t>(place[d]);
    return slot;
  }

  template <class Take>
  void for_each_slot(Take take) const {
    Shape place(counts_.size(), 0);
    for (size_t i = 0; i < positions_.size(); ++i) {
      take(slot_of(place), place);
      for (size_t d = place.size(); d-- > 0 && ++place[d] == counts_[d];) place[d] = 0;
    }
  }

  void take(const std::vector<uint64_t>& slots) {
    for_each_slot([&](uint64_t slot, const Shape& place) {
      if (slot < slots.size()) put(place, slots[slot]);
    });
  }

  const H5Bytes& file_;
  const H5Layout& layout_;
  const H5Space& space_;
  const Shape& counts_;
  Shape most_;  ///< chunks along each of the largest dims
  uint64_t bytes_;
  std::vector<uint64_t> positions_;
};

}  // namespace

Shape count_h5_chunks(const H5Layout& layout, const std::vector<uint64_t>& dims) {
  Shape counts;
  for (size_t d = 0; d < dims.size(); ++d)
    counts.push_back(
        static_cast<int64_t>(dims[d] / layout.chunk[d] + (dims[d] % layout.chunk[d] != 0 ? 1 : 0)));
  return counts;
}

std::vector<uint64_t> read_h5_chunks(const H5Bytes& file, const H5Layout& layout,
                                     const H5Space& space, const Shape& counts, uint64_t bytes) {
  return ChunkIndex(file, layout, space, counts, bytes).positions();
}

}  // namespace zea
