// SPDX-License-Identifier: Apache-2.0
#include "mend.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "zea/io/manifest.hpp"

namespace zea::fuzz {
namespace {

/// The number of `count` bytes at `place`, lowest first.
uint64_t number_at(const Bytes& bytes, size_t place, size_t count) {
  uint64_t number = 0;
  for (size_t i = count; i-- > 0;) number = number << 8 | bytes[place + i];
  return number;
}

void put_number(Bytes& bytes, size_t place, uint64_t number, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes[place + i] = static_cast<uint8_t>(number >> (8 * i));
}

/// CRC-32 of PNG.
uint32_t crc32(const uint8_t* data, size_t count) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

/// Bob Jenkins' lookup3, which HDF5 puts behind its metadata.
uint32_t lookup3(const Bytes& bytes, size_t begin, size_t count) {
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(count), b = a, c = a;
  const auto word = [&](size_t from) {
    const size_t left = from < count ? std::min<size_t>(4, count - from) : 0;
    return static_cast<uint32_t>(number_at(bytes, begin + from, left));
  };
  const auto turn = [](uint32_t& x, uint32_t y, int bits) { x ^= std::rotl(y, bits); };
  size_t at = 0;
  for (; count - at > 12; at += 12) {
    a += word(at), b += word(at + 4), c += word(at + 8);
    a -= c, turn(a, c, 4), c += b;
    b -= a, turn(b, a, 6), a += c;
    c -= b, turn(c, b, 8), b += a;
    a -= c, turn(a, c, 16), c += b;
    b -= a, turn(b, a, 19), a += c;
    c -= b, turn(c, b, 4), b += a;
  }
  if (at == count) return c;
  a += word(at), b += word(at + 4), c += word(at + 8);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

void sum_h5(Bytes& bytes, size_t begin, size_t count) {
  if (count < bytes.size() && begin + count + 4 <= bytes.size())
    put_number(bytes, begin + count, lookup3(bytes, begin, count), 4);
}

/// Bytes of an object header of version 2 before its sum.
size_t header_bytes(const Bytes& bytes, size_t begin) {
  const uint8_t flags = bytes[begin + 5];
  const size_t width = size_t{1} << (flags & 3);
  const size_t place = 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
  if (begin + place + width > bytes.size()) return bytes.size();
  return place + width + std::min<size_t>(number_at(bytes, begin + place, width), bytes.size());
}

}  // namespace

void mend_h5(Bytes& bytes) {
  constexpr size_t kSuperblock = 44;
  if (bytes.size() > 8 && bytes[8] >= 2) sum_h5(bytes, 0, kSuperblock);
  constexpr std::string_view kHeader = "OHDR";
  for (auto next = bytes.begin();; ++next) {
    next = std::search(next, bytes.end(), kHeader.begin(), kHeader.end());
    if (bytes.end() - next < 8) return;
    const auto begin = static_cast<size_t>(next - bytes.begin());
    sum_h5(bytes, begin, header_bytes(bytes, begin));
  }
}

void mend_manifest(Bytes& bytes) {
  constexpr size_t kDigits = 32, kTail = 4;  // "\n}\n
  if (bytes.size() < kDigits + kTail + 12) return;
  const size_t begin = bytes.size() - kTail - kDigits - 11;  // "digest": "
  const std::string digest = hash_bytes(bytes.data(), static_cast<int64_t>(begin));
  const std::string tail = "\"digest\": \"" + digest + "\"\n}\n";
  std::copy(tail.begin(), tail.end(), bytes.begin() + static_cast<ptrdiff_t>(begin));
}

void mend_png(Bytes& bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    uint64_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | bytes[at + i];
    if (length > bytes.size() - at - 12) return;
    const uint32_t crc = crc32(&bytes[at + 4], length + 4);
    for (size_t i = 0; i < 4; ++i)
      bytes[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at += length + 12;
  }
}

void mend_safetensors(Bytes& bytes) {
  if (bytes.size() < 10 || number_at(bytes, 0, 8) <= bytes.size() - 8) return;
  const auto last = std::find(bytes.rbegin(), bytes.rend(), '}').base() - bytes.begin();
  put_number(bytes, 0, static_cast<uint64_t>(std::max<ptrdiff_t>(last, 10) - 8), 8);
}

}  // namespace zea::fuzz
