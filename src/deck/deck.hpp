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

/// The faults of a deck, with the options that could be read: keys at fault keep their defaults, so
/// that faults of the plan can be reported at the same time.
struct FaultyDeck : DeckError {
  FaultyDeck(const std::string& message, Options read)
      : DeckError(message), options(std::move(read)) {}
  Options options;
};

/// Reads `path` and applies `overrides` ("section.key=value", TOML values; a bare word is a
/// string). Throws FaultyDeck listing every fault with file, line and column (or the override's
/// text).
Options read_deck(const std::string& path, const std::vector<std::string>& overrides);

/// Likewise from text; messages call it `name`.
Options parse_deck(const std::string& text, const std::string& name,
                   const std::vector<std::string>& overrides);

/// Returns whether any of `overrides` sets a key or, for a section, one of its keys: by name, or in
/// a table of a section above it.
bool is_overridden(const std::string& path, const std::vector<std::string>& overrides);

/// Returns the resolved deck as TOML: every section and key, with its help as a comment. parse_deck
/// reads it back.
std::string echo_deck(const Options& options);

/// A key that differs from its default: "mesh.llm.wrap_units", "mesh.llm.wrap_units = 2" (TOML),
/// and the module in its section's name ("llm"; empty: none is).
struct ChangedKey {
  std::string path, text, module;
};
/// Returns them in the order of the documentation.
std::vector<ChangedKey> changed_keys(const Options& options);

/// Returns the reference of all keys (name, type, default, range, help) for `zea -h`.
std::string deck_reference();

/// Returns the reference of one section ("mesh.llm"), or of one key ("mesh.llm.tp") with an
/// example; of "hardware" that of hardware files. Throws DeckError with the nearest names.
std::string key_help(const std::string& path);

/// The description of a key in manuals.
struct KeyDescription {
  std::string path, standard;  ///< default, as TOML
  std::string values;          ///< "integer: 1 to 64"
  std::string help;
};
std::vector<KeyDescription> describe_keys();

}  // namespace zea
