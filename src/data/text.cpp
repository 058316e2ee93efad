// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <cctype>

namespace zea {
namespace {

/// Characters that a name may not touch. Bytes of letters beyond ASCII count as parts of words.
bool is_part_of_word(unsigned char c) {
  return std::isalnum(c) || c == '-' || c >= 0x80;
}

bool names(const std::string& text, const std::string& name) {
  if (name.empty()) return false;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool joined_before = at > 0 && is_part_of_word(static_cast<unsigned char>(text[at - 1]));
    const bool joined_after =
        end < text.size() && is_part_of_word(static_cast<unsigned char>(text[end]));
    if (!joined_before && !joined_after) return true;
  }
  return false;
}

}  // namespace

std::string text_of_tokens(const std::vector<std::string>& token_bytes,
                           const std::vector<int32_t>& tokens) {
  std::string text;
  for (int32_t token : tokens)
    if (token >= 0 && static_cast<size_t>(token) < token_bytes.size())
      text += token_bytes[static_cast<size_t>(token)];
  return text;
}

std::optional<int32_t> class_named_in(const std::string& text,
                                      const std::vector<std::string>& classes) {
  std::optional<int32_t> found;
  for (size_t i = 0; i < classes.size(); ++i) {
    if (!names(text, classes[i])) continue;
    if (found) return std::nullopt;
    found = static_cast<int32_t>(i);
  }
  return found;
}

}  // namespace zea
