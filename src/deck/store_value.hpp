// SPDX-License-Identifier: Apache-2.0
// From TOML values to the members of keys.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <string>

#include "deck/key_table.hpp"

namespace zea {

/// A value that its key does not take.
struct ValueFault {
  toml::source_region where;
  std::string text;
};

/// Stores a TOML value in the member of a key. Returns the fault, and leaves the member as it is,
/// where the key does not take the value.
std::optional<ValueFault> store_value(const Key& key, const toml::node& node);

/// Reads a TOML file, of which a byte more than check_toml_text() takes is enough. `kind` names
/// what it is in messages: "deck". Throws DeckError.
std::string read_toml_text(const std::string& kind, const std::string& path);
/// Throws DeckError where `text` is larger than 1 MiB or has a line that toml++ cannot take.
void check_toml_text(const std::string& kind, const std::string& name, const std::string& text);

/// Returns a scalar as TOML, for messages; empty for other values.
std::string node_text(const toml::node& node);
/// Returns the type of a value in words: "an integer".
std::string type_words(const toml::node& node);

}  // namespace zea
