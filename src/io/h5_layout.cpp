// SPDX-License-Identifier: Apache-2.0
// Object headers of both versions, as the HDF5 File Format Specification (IV.A) has them: chunks of
// messages, one of which tells the layout, others where the next chunk lies.
#include "h5_layout.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "read_at.hpp"

namespace zea {
namespace {

constexpr uint64_t kLayout = 8, kContinuation = 16;  ///< messages
constexpr int64_t kFirstVersionWithVirtual = 4, kVirtual = 3;
constexpr uint64_t kMaxBytes = 16 << 20;  ///< looked at in all: chunks may lead to each other
constexpr int64_t kMaxPrefix = 34;        ///< before the first chunk's messages

class HeaderWalk {
 public:
  HeaderWalk(const H5File::State& state, hid_t creation) : state_(state) {
    check_h5(H5Pget_sizes(creation, &address_bytes_, &length_bytes_), state.site, "H5Pget_sizes");
    check_h5(H5Pget_userblock(creation, &base_), state.site, "H5Pget_userblock");
  }

  bool finds_virtual(haddr_t address) {
    add_first(address);
    uint64_t left = kMaxBytes;
    for (size_t c = 0; c < chunks_.size() && left > 0; ++c) {
      const std::string chunk = bytes_at(chunks_[c].begin, std::min(left, chunks_[c].bytes));
      if (chunk_tells_virtual(chunk)) return true;
      left -= std::max<uint64_t>(1, chunk.size());
    }
    return false;
  }

 private:
  struct Chunk {
    uint64_t begin, bytes;
  };

  /// As many of `wanted` as the file has there.
  std::string bytes_at(uint64_t address, uint64_t wanted) const {
    const auto end = static_cast<uint64_t>(state_.file_bytes);
    const uint64_t begin = std::min(end, uint64_t{base_} + std::min(address, end));
    std::string bytes(std::min(wanted, end - begin), '\0');
    const char* fault = read_at(state_.descriptor, static_cast<int64_t>(begin), bytes.data(),
                                static_cast<int64_t>(bytes.size()), "it was cut short");
    return fault == nullptr ? bytes : "";
  }

  static uint64_t number(std::string_view bytes, size_t place, size_t count) {
    uint64_t value = 0;
    for (size_t i = std::min<size_t>(count, 8); i-- > 0;)
      value = value << 8 | (place + i < bytes.size() ? static_cast<uint8_t>(bytes[place + i]) : 0);
    return value;
  }

  void add_first(haddr_t address) {
    const std::string head = bytes_at(address, kMaxPrefix);
    is_new_ = head.starts_with("OHDR");
    if (!is_new_) {
      chunks_.push_back({address + 16, number(head, 8, 4)});
      return;
    }
    const uint64_t flags = number(head, 5, 1);
    has_order_ = (flags & 0x04) != 0;
    const size_t width = size_t{1} << (flags & 3);
    const size_t place = 6 + ((flags & 0x20) != 0 ? 16 : 0) + ((flags & 0x10) != 0 ? 4 : 0);
    chunks_.push_back({address + place + width, number(head, place, width)});
  }

  bool chunk_tells_virtual(const std::string& chunk) {
    const size_t head = is_new_ ? (has_order_ ? 6 : 4) : 8;
    for (size_t place = 0; place + head <= chunk.size();) {
      const uint64_t type = number(chunk, place, is_new_ ? 1 : 2);
      const size_t size = number(chunk, place + (is_new_ ? 1 : 2), 2);
      place += head;
      if (type == kLayout && number(chunk, place, 1) >= kFirstVersionWithVirtual &&
          number(chunk, place + 1, 1) == kVirtual)
        return true;
      if (type == kContinuation) add_continuation(chunk, place);
      place += size;
    }
    return false;
  }

  /// A new one has a signature before its messages; the sum behind them is too short for another.
  void add_continuation(const std::string& chunk, size_t place) {
    const uint64_t signature = is_new_ ? 4 : 0;
    chunks_.push_back({number(chunk, place, address_bytes_) + signature,
                       number(chunk, place + address_bytes_, length_bytes_) - signature});
  }

  const H5File::State& state_;
  size_t address_bytes_ = 8, length_bytes_ = 8;
  hsize_t base_ = 0;
  bool is_new_ = false, has_order_ = false;
  std::vector<Chunk> chunks_;
};

}  // namespace

bool is_virtual_dataset(const H5File::State& state, const std::string& name) {
  const std::string what = "cannot read object \"" + name + "\"";
  H5O_info_t info;
  check_h5(H5Oget_info_by_name2(*state.file, name.c_str(), &info, H5O_INFO_BASIC, H5P_DEFAULT),
           state.site, what);
  const H5Handle creation(H5Fget_create_plist(*state.file), H5Pclose, state.site, what);
  return HeaderWalk(state, *creation).finds_virtual(info.addr);
}

}  // namespace zea
