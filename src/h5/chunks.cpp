// SPDX-License-Identifier: Apache-2.0
#include "h5/chunks.hpp"

#include <algorithm>

#include "h5/array.hpp"
#include "h5/btree.hpp"

namespace zea {
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
