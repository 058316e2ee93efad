// SPDX-License-Identifier: Apache-2.0
#include "h5/structures.hpp"

#include <bit>

namespace zea {
namespace {

constexpr const char* kNameHeap = "heap of names";
constexpr const char* kHeap = "fractal heap";
constexpr const char* kHeapBlock = "block of a fractal heap";
constexpr uint64_t kHasSums = 2;  ///< flag: of direct blocks

uint64_t log2_of(uint64_t power) {
  return static_cast<uint64_t>(std::bit_width(power)) - 1;
}

}  // namespace

H5LocalHeap::H5LocalHeap(const H5Bytes& file, uint64_t address) : file_(file) {
  const std::string head = file.at(address, 32, kNameHeap);
  H5Cursor cursor(file, kNameHeap, address, head);
  cursor.expect("HEAP");
  cursor.expect_version(0);
  cursor.skip(3);
  const uint64_t bytes = cursor.number(8);
  cursor.skip(8);  // what is free
  bytes_ = file.at(cursor.address(), bytes, kNameHeap);
}

std::string H5LocalHeap::name(uint64_t offset) {
  const size_t end = offset < bytes_.size() ? bytes_.find('\0', offset) : std::string::npos;
  if (end == std::string::npos || end == offset)
    file_.refuse(kNameHeap, offset, "has no name there");
  names_.add(file_, kNameHeap, offset, end + 1 - offset);
  return bytes_.substr(offset, end - offset);
}

H5FractalHeap::H5FractalHeap(const H5Bytes& file, uint64_t address)
    : file_(file), address_(address) {
  constexpr uint64_t kBytes = 146;
  const std::string bytes = file.checked(address, kBytes, kHeap);
  H5Cursor cursor(file, kHeap, address, bytes);
  cursor.expect("FRHP");
  cursor.expect_version(0);
  id_bytes_ = cursor.number(2);
  cursor.expect(0, 2, "filters of length");
  flags_ = cursor.number(1);
  max_managed_ = cursor.number(4);
  cursor.skip(8);  // the next number of a huge object
  huge_tree_ = cursor.address();
  cursor.skip(uint64_t{10} * 8);  // counts, and what is free
  read_table(cursor);
  parts_.add(file, kHeap, address, kBytes);
}

void H5FractalHeap::read_table(H5Cursor& cursor) {
  width_ = cursor.number(2);
  first_bytes_ = cursor.number(8);
  max_direct_ = cursor.number(8);
  const uint64_t max_bits = cursor.number(2);
  cursor.skip(2);  // how many rows it began with
  root_ = cursor.address();
  root_rows_ = cursor.number(2);
  const bool is_sound = std::has_single_bit(width_) && std::has_single_bit(first_bytes_) &&
                        std::has_single_bit(max_direct_) && first_bytes_ <= max_direct_ &&
                        max_direct_ <= uint64_t{1} << 32 && max_bits <= 64 && max_managed_ > 0 &&
                        id_bytes_ > 1 && id_bytes_ <= 64;
  if (!is_sound) cursor.refuse("has blocks of impossible sizes");
  offset_bytes_ = (max_bits + 7) / 8;
  length_bytes_ = std::min((log2_of(max_direct_) + 7) / 8, h5_width(max_managed_));
}

std::string H5FractalHeap::object(std::string_view id) {
  constexpr uint64_t kManaged = 0, kHuge = 1;
  H5Cursor cursor(file_, "object of a fractal heap", address_, id);
  const uint64_t head = cursor.number(1);
  const uint64_t type = head >> 4;  // of version 0, which is in the two bits above
  if (type == kManaged) {
    const uint64_t offset = cursor.number(offset_bytes_);
    return managed(offset, cursor.number(length_bytes_));
  }
  if (type == kHuge && id_bytes_ <= 2 * kH5Address)
    return huge(cursor.number(std::min<uint64_t>(id_bytes_ - 1, 8)));
  cursor.refuse("is of an unknown type");
}

std::string H5FractalHeap::managed(uint64_t offset, uint64_t length) {
  managed_.add(file_, kHeap, offset, length);
  const Block& block = block_of(offset);
  const uint64_t head = 5 + kH5Address + offset_bytes_ + ((flags_ & kHasSums) != 0 ? kH5Sum : 0);
  const uint64_t place = offset - block.begin;
  if (place < head || place > block.bytes.size() || length > block.bytes.size() - place)
    file_.refuse(kHeapBlock, block.address, "does not hold an object that its heap has there");
  return block.bytes.substr(place, length);
}

const H5FractalHeap::Block& H5FractalHeap::block_of(uint64_t offset) {
  const auto next = blocks_.upper_bound(offset);
  if (next != blocks_.begin() &&
      offset - std::prev(next)->first < std::prev(next)->second.bytes.size())
    return std::prev(next)->second;
  if (root_rows_ == 0) return direct_block(root_, 0, first_bytes_);
  Entry entry{root_, 0, 0};
  for (uint64_t rows = root_rows_;;
       rows = log2_of(row_bytes(entry.row)) - log2_of(first_bytes_ * width_) + 1) {
    entry = entry_of(entry.address, entry.begin, rows, offset);
    if (row_bytes(entry.row) <= max_direct_)
      return direct_block(entry.address, entry.begin, row_bytes(entry.row));
    if (row_bytes(entry.row) < first_bytes_ * width_)
      file_.refuse(kHeap, address_, "has blocks of impossible sizes");
  }
}

H5FractalHeap::Entry H5FractalHeap::entry_of(uint64_t address, uint64_t begin, uint64_t rows,
                                             uint64_t offset) {
  const uint64_t head = 5 + kH5Address + offset_bytes_, row = first_bytes_ * width_;
  const uint64_t inside = offset - begin;
  const uint64_t r = inside < row ? 0 : log2_of(inside / row) + 1;
  if (r >= rows) file_.refuse(kHeap, address_, "does not reach as far as an object of it");
  auto known = indirect_.find(address);
  if (known == indirect_.end()) {
    const uint64_t bytes = head + rows * width_ * kH5Address + kH5Sum;
    parts_.add(file_, kHeapBlock, address, bytes);
    known = indirect_.emplace(address, file_.checked(address, bytes, kHeapBlock)).first;
  }
  H5Cursor cursor(file_, kHeapBlock, address, known->second);
  cursor.expect("FHIB");
  cursor.expect_version(0);
  cursor.expect(address_, kH5Address, "heap");
  cursor.expect(begin, offset_bytes_, "offset");
  const uint64_t row_begin = r == 0 ? 0 : row << (r - 1);
  const uint64_t column = (inside - row_begin) / row_bytes(r);
  cursor.skip((r * width_ + column) * kH5Address);
  return {cursor.address(), begin + row_begin + column * row_bytes(r), r};
}

const H5FractalHeap::Block& H5FractalHeap::direct_block(uint64_t address, uint64_t begin,
                                                        uint64_t bytes) {
  file_.position(address, bytes, kHeapBlock);
  parts_.add(file_, kHeapBlock, address, bytes);
  std::string block = file_.at(address, bytes, kHeapBlock);
  H5Cursor cursor(file_, kHeapBlock, address, block);
  cursor.expect("FHDB");
  cursor.expect_version(0);
  cursor.expect(address_, kH5Address, "heap");
  cursor.expect(begin, offset_bytes_, "offset");
  if ((flags_ & kHasSums) != 0) {
    const uint64_t sum = cursor.number(kH5Sum);
    block.replace(5 + kH5Address + offset_bytes_, kH5Sum, kH5Sum, '\0');  // as it was summed up
    if (h5_checksum(block) != sum) cursor.refuse("has another checksum than it says");
  }
  return blocks_.emplace(begin, Block{address, begin, std::move(block)}).first->second;
}

std::string H5FractalHeap::huge(uint64_t number) {
  constexpr uint64_t kRecord = 24;
  if (!has_huge_) {
    for (const std::string& record :
         read_h5_records(file_, huge_tree_, H5BTree2::HugeObjects, kRecord)) {
      H5Cursor cursor(file_, kHeap, address_, record);
      const uint64_t address = cursor.address(), bytes = cursor.number(8);
      huge_[cursor.number(8)] = {address, bytes};
    }
    has_huge_ = true;
  }
  const auto found = huge_.find(number);
  if (found == huge_.end()) file_.refuse(kHeap, address_, "does not have one of its objects");
  const auto [address, bytes] = found->second;
  file_.position(address, bytes, kHeap);
  huge_parts_.add(file_, kHeap, address, bytes);
  return file_.at(address, bytes, kHeap);
}

}  // namespace zea
