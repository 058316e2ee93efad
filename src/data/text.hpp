// SPDX-License-Identifier: Apache-2.0
// Reading generated tokens: their bytes, and which class a text names. The counterpart of the pack
// scripts, so that evaluation needs no tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zea {

/// The bytes of `tokens` one after another (DatasetTexts::token_bytes). Ids without bytes, special
/// tokens among them, add nothing. The result need not be valid UTF-8: a character may be spread
/// over several tokens.
std::string text_of_tokens(const std::vector<std::string>& token_bytes,
                           const std::vector<int32_t>& tokens);

/// The one class that `text` names in whole words ("shirt" is not in "t-shirt"); nullopt when it
/// names none or several.
std::optional<int32_t> class_named_in(const std::string& text,
                                      const std::vector<std::string>& classes);

}  // namespace zea
