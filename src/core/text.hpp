// SPDX-License-Identifier: Apache-2.0
// Small functions on strings.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace zea {

/// Returns the text that printf would print, without a limit on its length.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);
[[gnu::format(printf, 1, 0)]] std::string formatted_list(const char* format, std::va_list values);

/// Returns `word(thing)` for each of `things`, separated by `between`: "a, b".
template <class Things, class Word = std::identity>
std::string join(const Things& things, std::string_view between = ", ", Word word = {}) {
  std::string text;
  std::string_view before;
  for (const auto& thing : things) {
    text.append(before).append(std::invoke(word, thing));
    before = between;
  }
  return text;
}

/// Makes text from untrusted files (names of tensors, of files, of keys) safe for a terminal: each
/// byte of a control character (C0 except tabs and, unless `is_line`, line ends; C1; characters
/// that change the direction of writing) and each byte that is not UTF-8 becomes "\x1b".
std::string printable(const std::string& text, bool is_line = false);

bool is_utf8(const std::string& text);

/// Returns the number of edits (insert, delete, replace, swap of neighbors) that turn `a` into `b`.
size_t edit_distance(const std::string& a, const std::string& b);

}  // namespace zea
