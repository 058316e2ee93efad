// SPDX-License-Identifier: Apache-2.0
#include "mend.hpp"

#include <algorithm>
#include <string>

#include "io/manifest.hpp"

namespace zea::fuzz {
namespace {

/// CRC-32 of PNG.
uint32_t crc32(const uint8_t* data, size_t count) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

}  // namespace

/// The number of `count` bytes at `place`, lowest first.
uint64_t number_at(const Bytes& bytes, size_t place, size_t count) {
  uint64_t number = 0;
  for (size_t i = count; i-- > 0;) number = number << 8 | bytes[place + i];
  return number;
}

void put_number(Bytes& bytes, size_t place, uint64_t number, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes[place + i] = static_cast<uint8_t>(number >> (8 * i));
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
