// SPDX-License-Identifier: Apache-2.0
#include "h5/bytes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "files/durable_file.hpp"

namespace zea {
namespace {

constexpr uint64_t kWindowBytes = 16 << 10, kWindowAlignment = 4 << 10;

/// Lowest byte first; zeros behind the end.
uint32_t word_at(std::string_view bytes, size_t place) {
  uint32_t word = 0;
  if (place < bytes.size())
    std::memcpy(&word, bytes.data() + place, std::min<size_t>(4, bytes.size() - place));
  return word;
}

}  // namespace

uint64_t H5Bytes::position(uint64_t address, uint64_t count, const char* what) const {
  const uint64_t end = file_bytes_ - base_;
  if (address > end || count > end - address) refuse(what, address, "reaches beyond the file");
  return base_ + address;
}

std::string H5Bytes::at(uint64_t address, uint64_t count, const char* what) const {
  const uint64_t begin = position(address, count, what);
  const auto read = [&](uint64_t from, std::string& into) {
    const char* fault = read_at(descriptor_, static_cast<int64_t>(from), into.data(),
                                static_cast<int64_t>(into.size()), "the file was cut short");
    if (fault == nullptr) return;
    window_.clear();
    refuse(what, address, std::string("cannot be read: ") + fault);
  };
  if (count > kWindowBytes - kWindowAlignment) {
    std::string bytes(count, '\0');
    read(begin, bytes);
    return bytes;
  }
  if (begin < window_begin_ || begin + count > window_begin_ + window_.size()) {
    window_begin_ = begin / kWindowAlignment * kWindowAlignment;
    window_.resize(std::min(kWindowBytes, file_bytes_ - window_begin_));
    read(window_begin_, window_);
  }
  return window_.substr(begin - window_begin_, count);
}

std::string H5Bytes::checked(uint64_t address, uint64_t count, const char* what) const {
  std::string bytes = at(address, count, what);
  const uint32_t sum = word_at(bytes, count - 4);
  bytes.resize(count - 4);
  if (h5_checksum(bytes) != sum) refuse(what, address, "has another checksum than it says");
  return bytes;
}

void H5Bytes::refuse(const char* what, uint64_t address, const std::string& why) const {
  throw_error(site_.code, site_.path + ": the " + what + " at byte " +
                              (address == kH5Undefined ? "?" : std::to_string(address)) + " " +
                              why +
                              "; the file is damaged, or not of the kinds that zea reads: write it "
                              "anew with zea or h5py");
}

uint32_t h5_checksum(std::string_view bytes) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size()), b = a, c = a;
  const auto add = [&](size_t place) {
    a += word_at(bytes, place), b += word_at(bytes, place + 4), c += word_at(bytes, place + 8);
  };
  size_t place = 0;
  for (; bytes.size() - place > 12; place += 12) {
    add(place);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
  }
  if (place == bytes.size()) return c;
  add(place);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

std::string_view H5Cursor::take(uint64_t count) {
  if (count > bytes_.size()) refuse("is shorter than what it holds");
  const std::string_view front = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return front;
}

uint64_t H5Cursor::number(size_t bytes) {
  const std::string_view front = take(bytes);
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(front[i]);
  return value;
}

void H5Cursor::expect(std::string_view signature) {
  if (take(signature.size()) != signature)
    refuse("does not begin with \"" + std::string(signature) + "\"");
}

void H5Cursor::expect_version(uint64_t version) {
  expect(version, 1, "version");
}

void H5Cursor::expect(uint64_t value, size_t bytes, const char* name) {
  const uint64_t found = number(bytes);
  if (found != value)
    refuse(std::string("has ") + name + " " + std::to_string(found) + ", must be " +
           std::to_string(value));
}

void H5Parts::add(const H5Bytes& file, const char* what, uint64_t address, uint64_t count) {
  const auto next = ends_.lower_bound(address);
  const bool is_clear = (next == ends_.end() || count <= next->first - address) &&
                        (next == ends_.begin() || std::prev(next)->second <= address);
  if (count == 0 || count > kH5Undefined - address || !is_clear)
    file.refuse(what, address, "is empty, or a part of another: a loop?");
  ends_.emplace(address, address + count);
}

size_t h5_width(uint64_t limit) {
  return (std::max(1, static_cast<int>(std::bit_width(limit))) + 7) / 8;
}

}  // namespace zea
