// SPDX-License-Identifier: Apache-2.0
#include "core/printable.hpp"

#include <cstdint>

namespace zea {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  ///< 0: these are not UTF-8
};

Character character_at(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const size_t bytes = byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (bytes == 0 || byte(0) > 0xf4 || at + bytes > text.size()) return {};
  uint32_t code = byte(0) & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[bytes] || code > 0x10ffff || is_surrogate ? Character{}
                                                                 : Character{code, bytes};
}

bool is_shown(uint32_t code, bool is_line) {
  if (code == '\n') return !is_line;
  const bool is_control = (code < 0x20 && code != '\t') || (code >= 0x7f && code < 0xa0);
  const bool turns = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return !is_control && !turns;
}

}  // namespace

bool is_utf8(const std::string& text) {
  for (size_t at = 0, bytes = 0; at < text.size(); at += bytes)
    if ((bytes = character_at(text, at).bytes) == 0) return false;
  return true;
}

std::string printable(const std::string& text, bool is_line) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const size_t end = at + (character.bytes == 0 ? 1 : character.bytes);
    if (character.bytes > 0 && is_shown(character.code, is_line)) {
      shown.append(text, at, end - at);
    } else {
      for (size_t i = at; i < end; ++i) {
        const auto byte = static_cast<uint8_t>(text[i]);
        shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
    at = end;
  }
  return shown;
}

}  // namespace zea
