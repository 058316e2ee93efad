// SPDX-License-Identifier: Apache-2.0
#include "h5/array.hpp"

#include <algorithm>
#include <bit>

namespace zea {
namespace {

constexpr const char* kArray = "index of chunks";
constexpr uint64_t kSlot = 8, kUnfiltered = 0, kBlockHead = 14;

using Slots = std::vector<uint64_t>;

/// Of headers and blocks alike.
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

  /// What follows the head of a block of `bytes` in all, its sum left out.
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

}  // namespace zea
