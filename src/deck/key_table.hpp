// SPDX-License-Identifier: Apache-2.0
// The declarations of options.hpp as a flat table, former keys, rules between keys, and the names
// nearest to an unknown one. Reading, echo and reference walk this table and name no key.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "deck/options.hpp"

namespace zea {

/// A pointer to the value of a key; the alternatives are the types of keys.
using KeyMember =
    std::variant<std::string*, AnyChoice*, bool*, int64_t*, double*, AutoOption*,
                 std::optional<double>*, std::vector<double>*, std::vector<std::string>*,
                 std::vector<std::vector<std::string>>*, DataSources*>;

struct Key {
  std::string section;
  KeyInfo info;
  KeyMember member;  ///< points into the Options that the table was made from

  std::string path() const { return section + "." + info.name; }
};

/// Returns every key in the order of the documentation.
std::vector<Key> list_keys(Options& options);

/// Returns every section in the order of the documentation.
std::vector<std::string> list_sections(Options& options);

/// Gives the module in a section's name ("model.X", "mesh.X", "precision.X") that section, unless
/// none of `keys` is one of such sections.
void add_module_section(Options& options, const std::string& section,
                        const std::vector<std::string>& keys);

/// The dotted paths among `paths` nearest to `path`: by edits of the last word, another prefix
/// counting a little more than one edit. Ties are all returned; nothing near gives an empty list.
std::vector<std::string> nearest_paths(const std::string& path,
                                       const std::vector<std::string>& paths);

/// An option of another program, and what to do about it here.
struct OtherProgramOption {
  std::string_view name;
  const char* advice;
};
std::span<const OtherProgramOption> other_program_options();
/// The advice on the option that a path's last word is, whatever its case; empty: it is none.
std::string other_program_advice(const std::string& path);

/// Advice on a path that is no key: zea's word for another program's option, the nearest keys,
/// or those of its section.
std::string key_advice(const std::string& path, const std::vector<Key>& keys);

/// A former key. A renamed one is still read, with a note; a removed one is refused, unless it has
/// its former default, which decks kept in checkpoints do.
struct RetiredKey {
  std::string_view section;   ///< the beginning of its name: "mesh."
  std::string_view name;      ///< the key in it
  std::string_view standard;  ///< its former default, as TOML
  std::string_view now;       ///< the key's new name; empty: removed
  const char* advice;         ///< what to do about a removed one
};
/// Returns the former key with this path; null: there was none.
const RetiredKey* retired_key(const std::string& path);
/// Returns the path with the key's new name, if it was renamed, else the path itself.
std::string current_path(const std::string& path);

/// A broken rule between keys: their paths ("optim.betas"), the most telling one first.
struct OptionFault {
  std::vector<std::string> keys;
  std::string message;
};

/// Returns every broken rule between keys of a deck, in the order of the sections. Rules that need
/// the model or the ranks are the plan's.
std::vector<OptionFault> check_options(const Options& options);

/// A key's range as words ("0 to 1000", "at least 1"), or its allowed values; empty when
/// anything goes.
std::string allowed_values(const Key& key);

/// User's text made fit for one line of a message.
std::string shown(const std::string& text, size_t max_bytes = 80);

/// `words` joined as in a sentence: "a, b or c".
std::string join_words(const std::vector<std::string>& words);

/// A value as TOML writes it; parsing the text gives the same value back, bit for bit.
std::string toml_text(const std::string& value);
std::string toml_text(const AnyChoice& value);
std::string toml_text(bool value);
std::string toml_text(int64_t value);
std::string toml_text(double value);
std::string toml_text(const AutoOption& value);
std::string toml_text(const std::optional<double>& value);
std::string toml_text(const std::vector<double>& value);
std::string toml_text(const std::vector<std::string>& value);
std::string toml_text(const std::vector<std::vector<std::string>>& value);
std::string toml_text(const DataSources& value);

/// The value that `member` points to, as TOML.
std::string toml_text(const KeyMember& member);

}  // namespace zea
