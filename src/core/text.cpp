// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace zea {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  ///< 0: not UTF-8
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

std::string formatted(const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::string text = formatted_list(format, values);
  va_end(values);
  return text;
}

std::string formatted_list(const char* format, std::va_list values) {
  std::va_list again;
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  return cost[a.size()][b.size()];
}

}  // namespace zea
