// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace zea {

/// What `word` makes of each of `things`, one after the other: "a, b".
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

}  // namespace zea
