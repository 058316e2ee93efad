// SPDX-License-Identifier: Apache-2.0
// A deck: a TOML file plus `section.key=value` overrides, resolved into Options. All faults
// (unknown keys with the nearest known one, wrong types, values out of range) are collected and
// thrown together as one DeckError.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "deck/options.hpp"

namespace zea {

/// Faults of a deck, with what could be read of it: keys that are at fault keep their defaults. So
/// what is wrong beyond the deck itself (the plan) can be told at the same time.
struct FaultyDeck : DeckError {
  FaultyDeck(const std::string& message, Options read)
      : DeckError(message), options(std::move(read)) {}
  Options options;
};

/// Reads `path` and applies `overrides` ("section.key=value", TOML values; a bare word is a
/// string). Throws FaultyDeck listing every fault with file, line and column (or the override's
/// text).
Options read_deck(const std::string& path, const std::vector<std::string>& overrides);

/// The same from text; `name` stands for the file in messages.
Options parse_deck(const std::string& text, const std::string& name,
                   const std::vector<std::string>& overrides);

/// Whether any of `overrides` gives a key or, of a section, one of its keys: by name, or in a table
/// of a section above it.
bool is_overridden(const std::string& path, const std::vector<std::string>& overrides);

/// The resolved deck as TOML: every section and key, with its help as a comment. parse_deck reads
/// it back.
std::string echo_deck(const Options& options);

/// A key that differs from its default: "mesh.llm.wrap_units", "mesh.llm.wrap_units = 2" (TOML),
/// and the module in its section's name ("llm"; empty: none is).
struct ChangedKey {
  std::string path, text, module;
};
/// In the order of the documentation.
std::vector<ChangedKey> changed_keys(const Options& options);

/// The reference of all keys (name, type, default, range, help) for `zea -h`.
std::string deck_reference();

/// The same of one section ("mesh.llm"), or all that is known of one key ("mesh.llm.tp") with an
/// example. Throws DeckError with the nearest names.
std::string key_help(const std::string& path);

/// A key as manuals tell it.
struct KeyDescription {
  std::string path, standard;  ///< default, as TOML
  std::string values;          ///< "integer: 1 to 64"
  std::string help;
};
std::vector<KeyDescription> describe_keys();

}  // namespace zea
