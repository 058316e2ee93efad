// SPDX-License-Identifier: Apache-2.0
// Checksums of a changed HDF5 file: structures are found by their signatures, anywhere, and their
// sizes in the structures that refer to them.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <string_view>

#include "h5/bytes.hpp"
#include "mend.hpp"

namespace zea::fuzz {
namespace {

constexpr size_t kSum = 4, kAddress = 8;

uint32_t sum_of(const Bytes& bytes, size_t begin, size_t count) {
  return h5_checksum({reinterpret_cast<const char*>(bytes.data()) + begin, count});
}

class Mender {
 public:
  explicit Mender(Bytes& bytes) : bytes_(bytes) {}

  void mend() {
    if (bytes_.size() > 8 && bytes_[8] >= 2) put_sum(0, 44);
    for_each("OHDR", [&](size_t at) { put_sum(at, header_bytes(at)); });
    for_each("OCHK", [&](size_t at) { mend_continuation(at); });
    for_each("FRHP", [&](size_t at) { mend_heap(at); });
    for_each("BTHD", [&](size_t at) { mend_tree(at); });
    for_each("FAHD", [&](size_t at) { mend_array(at); });
  }

 private:
  template <class Take>
  void for_each(std::string_view signature, Take take) {
    for (auto next = bytes_.begin();; ++next) {
      next = std::search(next, bytes_.end(), signature.begin(), signature.end());
      if (next == bytes_.end()) return;
      take(static_cast<size_t>(next - bytes_.begin()));
    }
  }

  bool holds(size_t at, size_t count) const {
    return at <= bytes_.size() && count <= bytes_.size() - at;
  }
  /// 0 outside the file.
  uint64_t number(size_t at, size_t count) const {
    return holds(at, count) ? number_at(bytes_, at, count) : 0;
  }
  bool is_at(uint64_t at, std::string_view signature) const {
    return holds(at, signature.size()) &&
           std::equal(signature.begin(), signature.end(),
                      bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void put_sum(size_t at, size_t count) {
    if (holds(at, count) && holds(at + count, kSum))
      put_number(bytes_, at + count, sum_of(bytes_, at, count), kSum);
  }

  /// Returns the bytes of an object header, before its sum.
  size_t header_bytes(size_t at) const {
    const uint64_t flags = number(at + 5, 1);
    const size_t width = size_t{1} << (flags & 3);
    const size_t place = 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
    return place + width + std::min<size_t>(number(at + place, width), bytes_.size());
  }

  /// The size may follow the address, wherever that is.
  void mend_continuation(size_t at) {
    for (size_t place = 0; holds(place, 2 * kAddress); ++place) {
      const uint64_t size = number(place + kAddress, 8);
      if (number(place, kAddress) == at && size > kSum && holds(at, size)) put_sum(at, size - kSum);
    }
  }

  void mend_heap(size_t at) {
    put_sum(at, 142);
    const size_t offset_bytes = std::min<uint64_t>(8, (number(at + 128, 2) + 7) / 8);
    const uint64_t width = number(at + 110, 2), first = number(at + 112, 8);
    const size_t head = 5 + kAddress + offset_bytes;
    if (width == 0 || first == 0 || first > bytes_.size()) return;
    for_each("FHIB", [&](size_t block) {
      if (number(block + 5, kAddress) == at) put_sum(block, head + number(at + 140, 2) * width * 8);
    });
    for_each("FHDB", [&](size_t block) {
      if (number(block + 5, kAddress) != at) return;
      const uint64_t rows = number(block + 5 + kAddress, offset_bytes) / first / width;
      const size_t size = first << (rows == 0 ? 0 : std::bit_width(rows) - 1);
      if (!holds(block, size) || !holds(block + head, kSum)) return;
      put_number(bytes_, block + head, 0, kSum);
      put_number(bytes_, block + head, sum_of(bytes_, block, size), kSum);
    });
  }

  void mend_tree(size_t at) {
    put_sum(at, 34);
    const uint64_t record = number(at + 10, 2), nodes = number(at + 6, 4);
    if (record == 0 || nodes < 10) return;
    const size_t count_bytes = (nodes - 10) / record > 255 ? 2 : 1;
    mend_node(number(at + 16, kAddress), number(at + 24, 2), record, count_bytes, true);
  }

  void mend_node(uint64_t at, uint64_t count, uint64_t record, size_t count_bytes, bool is_root) {
    const size_t head = 6 + count * record;
    if (is_at(at, "BTLF")) put_sum(at, head);
    if (!is_root || !is_at(at, "BTIN")) return;
    const size_t child = kAddress + count_bytes;  // of a tree of two levels
    put_sum(at, head + (count + 1) * child);
    for (size_t c = 0; c <= count; ++c) {
      const size_t place = at + head + c * child;
      mend_node(number(place, kAddress), number(place + kAddress, count_bytes), record, count_bytes,
                false);
    }
  }

  void mend_array(size_t at) {
    put_sum(at, 24);
    const uint64_t count = number(at + 8, 8), block = number(at + 16, kAddress);
    if (count <= bytes_.size() && is_at(block, "FADB")) put_sum(block, 14 + count * kAddress);
  }

  Bytes& bytes_;
};

}  // namespace

void mend_h5(Bytes& bytes) {
  Mender(bytes).mend();
}

}  // namespace zea::fuzz
