// SPDX-License-Identifier: Apache-2.0
// Reads a deck: TOML text and overrides become tables, whose values go to the members that
// options.hpp declares; a value that does not fit becomes a fault with its place.
#include "deck/deck.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/key_table.hpp"
#include "deck/store_value.hpp"

namespace zea {
namespace {

constexpr size_t kMaxShownFaults = 100;

struct Fault {
  size_t order;  ///< overrides after the file
  toml::source_position place;
  std::string text;
};

/// Fills Options from one or more tables and keeps every fault on the way.
class DeckReader {
 public:
  DeckReader(const DeckReader&) = delete;  // keys_ points into options_
  DeckReader& operator=(const DeckReader&) = delete;
  explicit DeckReader(std::string name) : name_(std::move(name)) { list_names(); }

  void read_text(const std::string& text);
  void read_override(const std::string& text);
  bool has_given(const std::string& path) const;
  Options finish();

 private:
  void list_names();
  void find_module(const std::string& section, const std::vector<std::string>& keys);
  bool is_section(const std::string& path) const;
  void read_section_override(const std::string& path, const toml::key& name,
                             const std::string& value);
  void read_table(const toml::table& table, const std::string& section);
  void read_entry(const std::string& path, const toml::key& name, const toml::node& node);
  void read_unknown_section(const std::string& path, const toml::key& name,
                            const toml::table& table);
  bool read_retired(const std::string& path, const toml::source_region& where,
                    const std::string& value);
  void read_value(const Key& key, const toml::node& node);

  void fault_unknown_key(const std::string& path, const toml::key& name);
  void fault_at(const toml::source_region& where, const std::string& text);
  void fault_between_keys(const OptionFault& broken);

  const Key* find_key(const std::string& path) const;
  std::string place_words(const toml::source_position& place) const;

  std::string name_;
  Options options_;
  std::vector<Key> keys_;
  std::vector<std::string> paths_, sections_;
  std::string override_;  ///< the override being read; empty while the file is
  size_t order_ = 0;
  bool is_toml_ = true;  ///< false: the file was not read, so rules between keys do not apply
  std::vector<Fault> faults_;
  std::set<std::string> suspects_;             ///< keys that have a fault already
  std::map<std::string, std::string> places_;  ///< of each key that was given
};

void DeckReader::list_names() {
  keys_ = list_keys(options_);
  sections_ = list_sections(options_);
  paths_.clear();
  for (const Key& key : keys_) paths_.push_back(key.path());
}

/// A deck may have sections of any module; the plan checks whether the model has it.
void DeckReader::find_module(const std::string& section, const std::vector<std::string>& keys) {
  if (is_section(section)) return;
  add_module_section(options_, section, keys);
  list_names();
}

bool DeckReader::is_section(const std::string& path) const {
  return std::count(sections_.begin(), sections_.end(), path) > 0;
}

void DeckReader::read_text(const std::string& text) {
  check_toml_text("deck", name_, text);
  try {
    read_table(toml::parse(text, name_), "");
  } catch (const toml::parse_error& error) {
    is_toml_ = false;
    const std::string fault(error.description());
    const bool is_mesh =
        fault.find("redefine") != std::string::npos && fault.find("'mesh") != std::string::npos;
    fault_at(error.source(),
             "not TOML: " + shown(fault, 320) +
                 (is_mesh ? "; beside mesh = \"auto\" other mesh keys are not TOML: "
                            "write [mesh] layout = \"auto\" and these keys below"
                          : ""));
  }
}

void DeckReader::read_override(const std::string& text) {
  override_ = text;
  ++order_;
  const size_t equals = text.find('=');
  const std::string given = text.substr(0, equals), path = current_path(given);
  const std::string leaf = path.substr(path.rfind('.') + 1);
  const toml::key name(leaf);
  if (equals == std::string::npos)
    return fault_at({}, "an override is section.key=value; there is no = here");
  const std::string value = text.substr(equals + 1);
  if (read_retired(given, {}, value)) return;
  find_module(path.substr(0, path.rfind('.')), {leaf});
  const Key* key = find_key(path);
  if (key == nullptr) return read_section_override(path, name, value);
  const bool is_quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
  const bool is_text =
      !is_quoted && (std::holds_alternative<std::string*>(key->member) ||
                     std::holds_alternative<AnyChoice*>(key->member) ||
                     (std::holds_alternative<DataSources*>(key->member) && value[0] != '['));
  if (is_text) return read_value(*key, toml::value<std::string>(value));
  const bool is_number =
      !value.empty() && value.find_first_not_of("+-0123456789_.eE") == std::string::npos;
  try {
    const toml::table table = toml::parse("value = " + value);
    if (table.size() == 1) return read_value(*key, *table.get("value"));
  } catch (const toml::parse_error&) {
    if (!is_quoted && !is_number && value.find_first_of("[{") != 0)
      return read_value(*key, toml::value<std::string>(value));
  }
  suspects_.insert(path);
  fault_at({}, path + ": " + shown(value) +
                   (is_number ? " is not a number that TOML takes" : " is not a TOML value"));
}

/// Reads an override of a section, whose keys are a table: model.llm.lora={rank=8}.
void DeckReader::read_section_override(const std::string& path, const toml::key& name,
                                       const std::string& value) {
  if (path == "mesh" && value == "auto")
    return read_value(*find_key("mesh.layout"), toml::value<std::string>(value));
  if (value.starts_with('{') || is_section(path)) try {
      const toml::table table = toml::parse("value = " + value);
      if (table.size() == 1) return read_entry(path, name, *table.get("value"));
    } catch (const toml::parse_error&) {
      return fault_at({}, path + ": " + shown(value) +
                              " is not a TOML value; a section's keys are a table, {key = value}");
    }
  fault_unknown_key(path, name);
}

void DeckReader::read_table(const toml::table& table, const std::string& section) {
  for (const auto& [name, node] : table)
    read_entry((section.empty() ? "" : section + ".") + std::string(name.str()), name, node);
}

void DeckReader::read_entry(const std::string& path, const toml::key& name,
                            const toml::node& node) {
  if (name.str().find('.') != std::string_view::npos)
    return fault_at(name.source(), "\"" + shown(std::string(name.str())) +
                                       "\" is one quoted name; sections are written [mesh.llm]");
  if (read_retired(path, name.source(), node_text(node))) return;
  if (const Key* key = find_key(current_path(path))) return read_value(*key, node);
  if (const toml::table* table = node.as_table()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : *table) {
      const std::string now = current_path(path + "." + std::string(key.str()));
      keys.push_back(now.substr(path.size() + 1));
    }
    find_module(path, keys);
  }
  if (is_section(path) && node.is_table()) return read_table(*node.as_table(), path);
  // mesh = "auto" is short for [mesh] layout = "auto".
  if (path == "mesh" && node.value_or(std::string()) == "auto")
    return read_value(*find_key("mesh.layout"), node);
  if (is_section(path))
    return fault_at(name.source(), path + " is a section, not " + type_words(node) + "; write [" +
                                       path + "] and its keys below");
  if (node.is_table()) return read_unknown_section(path, name, *node.as_table());
  fault_unknown_key(path, name);
}

/// Continues as if the nearest section had been meant, so that one run shows all faults.
void DeckReader::read_unknown_section(const std::string& path, const toml::key& name,
                                      const toml::table& table) {
  if (const std::string advice = other_program_advice(path); !advice.empty())
    return fault_at(name.source(), "[" + shown(path) + "] is not a section; " + advice);
  const std::vector<std::string> nearest = nearest_paths(path, sections_);
  std::vector<std::string> bracketed;
  for (const std::string& section : nearest.empty() ? sections_ : nearest)
    bracketed.push_back("[" + section + "]");
  fault_at(name.source(), "[" + shown(path) + "] is not a section; " +
                              (nearest.empty() ? "the sections are " + join_words(bracketed)
                                               : "did you mean " + join_words(bracketed) + "?"));
  if (nearest.size() == 1) read_table(table, nearest[0]);
}

/// Reports a former key. Returns whether it was removed, so that there is nothing to read.
bool DeckReader::read_retired(const std::string& path, const toml::source_region& where,
                              const std::string& value) {
  const RetiredKey* key = retired_key(path);
  if (!key || value == key->standard) return key && key->now.empty();
  if (key->now.empty()) {
    fault_at(where, path + " = " + shown(value) + " is no longer a key; " + key->advice);
    return true;
  }
  options_.notes.push_back(path + " is now called " + current_path(path) + " (" +
                           place_words(where.begin) + ")");
  return false;
}

void DeckReader::read_value(const Key& key, const toml::node& node) {
  places_[key.path()] = place_words(node.source().begin);
  const std::optional<ValueFault> fault = store_value(key, node);
  if (!fault) return;
  suspects_.insert(key.path());
  fault_at(fault->where, fault->text);
}

void DeckReader::fault_unknown_key(const std::string& path, const toml::key& name) {
  const std::vector<std::string> nearest = nearest_paths(path, paths_);
  suspects_.insert(nearest.begin(), nearest.end());
  fault_at(name.source(), shown(path) + " is not a key; " + key_advice(path, keys_));
}

void DeckReader::fault_at(const toml::source_region& where, const std::string& text) {
  faults_.push_back({order_, where.begin, text + " (" + place_words(where.begin) + ")"});
}

/// Reports a broken rule between keys unless one of them has a fault already.
void DeckReader::fault_between_keys(const OptionFault& broken) {
  std::string place = name_;
  for (auto key = broken.keys.rbegin(); key != broken.keys.rend(); ++key) {
    if (suspects_.count(*key) > 0) return;
    if (const auto found = places_.find(*key); found != places_.end()) place = found->second;
  }
  faults_.push_back({order_, {}, broken.message + " (" + place + ")"});
}

const Key* DeckReader::find_key(const std::string& path) const {
  const auto found = std::find(paths_.begin(), paths_.end(), path);
  return found == paths_.end() ? nullptr : &keys_[static_cast<size_t>(found - paths_.begin())];
}

std::string DeckReader::place_words(const toml::source_position& place) const {
  if (!override_.empty()) return "override " + shown(override_);
  return name_ + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

bool DeckReader::has_given(const std::string& path) const {
  return std::ranges::any_of(places_, [&](const auto& given) {
    return given.first == path || given.first.starts_with(path + ".");
  });
}

Options DeckReader::finish() {
  ++order_;
  std::ranges::replace(options_.mesh.order, "dp_module", "encoder_dp");  // its former name
  if (is_toml_)
    for (const OptionFault& broken : check_options(options_)) fault_between_keys(broken);
  for (const auto& [path, place] : places_) options_.given.insert(path);
  if (faults_.empty()) return options_;
  std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) {
    return std::tie(a.order, a.place.line, a.place.column) <
           std::tie(b.order, b.place.line, b.place.column);
  });
  std::string message;
  for (size_t i = 0; i < std::min(faults_.size(), kMaxShownFaults); ++i)
    message += (i > 0 ? "\n" : "") + faults_[i].text;
  if (faults_.size() > kMaxShownFaults)
    message += "\n... and " + std::to_string(faults_.size() - kMaxShownFaults) + " more";
  throw FaultyDeck(message, options_);
}

}  // namespace

Options read_deck(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_deck(read_toml_text("deck", path), path, overrides);
}

Options parse_deck(const std::string& text, const std::string& name,
                   const std::vector<std::string>& overrides) {
  DeckReader reader(name);
  reader.read_text(text);
  for (const std::string& entry : overrides) reader.read_override(entry);
  return reader.finish();
}

bool is_overridden(const std::string& path, const std::vector<std::string>& overrides) {
  DeckReader reader("");
  for (const std::string& entry : overrides) reader.read_override(entry);
  return reader.has_given(path);
}

}  // namespace zea
