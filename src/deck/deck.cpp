// SPDX-License-Identifier: Apache-2.0
// Reads a deck: TOML text and overrides become tables, the tables' values go to the members that
// options.hpp declares, and whatever does not fit becomes a fault with its place. The only file
// that knows toml++.
#include "deck/deck.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/check.hpp"
#include "deck/key_table.hpp"

namespace zea {
namespace {

constexpr size_t kMaxDeckBytes = 1 << 20;
constexpr size_t kMaxDotsInLine =
    1000;  // toml++ nests a table per dot, and frees them by recursion
constexpr size_t kMaxShownFaults = 100;

struct Fault {
  size_t order;  ///< overrides after the file
  toml::source_position place;
  std::string text;
};

std::string node_text(const toml::node& node) {
  if (const auto* value = node.as_string()) return shown(toml_text(value->get()));
  if (const auto* value = node.as_integer()) return toml_text(value->get());
  if (const auto* value = node.as_floating_point()) return toml_text(value->get());
  if (const auto* value = node.as_boolean()) return toml_text(value->get());
  return "";
}

std::string type_words(const toml::node& node) {
  if (node.is_string()) return "a string";
  if (node.is_integer()) return "an integer";
  if (node.is_floating_point()) return "a float";
  if (node.is_boolean()) return "a boolean";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a section";
  return "a date or time";
}

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
  void read_value(const Key& key, const toml::node& node);

  void store(std::string& member, const Key& key, const toml::node& node);
  void store(AnyChoice& member, const Key& key, const toml::node& node);
  void store(bool& member, const Key& key, const toml::node& node);
  void store(int64_t& member, const Key& key, const toml::node& node);
  void store(double& member, const Key& key, const toml::node& node);
  void store(AutoOption& member, const Key& key, const toml::node& node);
  void store(std::optional<double>& member, const Key& key, const toml::node& node);
  void store(std::vector<double>& member, const Key& key, const toml::node& node);
  void store(std::vector<std::string>& member, const Key& key, const toml::node& node);
  void store(std::vector<std::vector<std::string>>& member, const Key& key, const toml::node& node);
  void store(DataSources& member, const Key& key, const toml::node& node);
  bool read_source(DataSource& source, const Key& key, const toml::node& node);

  bool in_range(double value, const Key& key, const toml::node& node);
  void fault_type(const char* needed, const Key& key, const toml::node& node);
  void fault_unknown_key(const std::string& path, const toml::key& name);
  void fault_at(const toml::source_region& where, const std::string& text);
  void fault_between_keys(const OptionFault& broken);

  const Key* find_key(const std::string& path) const;
  std::string place_words(const toml::source_position& place) const;

  std::string name_;
  Options options_;
  std::vector<Key> keys_;
  std::vector<std::string> paths_, sections_;
  std::string override_;  ///< the one being read; empty while the file is
  size_t order_ = 0;
  bool is_toml_ =
      true;  ///< false: nothing of the file was read, so rules between keys tell nothing
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

/// A deck may have sections of any module: whether the model has it, the plan knows.
void DeckReader::find_module(const std::string& section, const std::vector<std::string>& keys) {
  if (is_section(section)) return;
  add_module_section(options_, section, keys);
  list_names();
}

bool DeckReader::is_section(const std::string& path) const {
  return std::count(sections_.begin(), sections_.end(), path) > 0;
}

void DeckReader::read_text(const std::string& text) {
  if (text.size() > kMaxDeckBytes)
    throw DeckError("deck " + name_ + " is larger than 1 MiB; is it a deck?");
  size_t dots = 0;
  for (const char c : text) {
    dots = c == '\n' ? 0 : dots + (c == '.' ? 1 : 0);
    if (dots > kMaxDotsInLine)
      throw DeckError("deck " + name_ + " has a line with over 1000 dots; is it a deck?");
  }
  try {
    read_table(toml::parse(text, name_), "");
  } catch (const toml::parse_error& error) {
    is_toml_ = false;
    fault_at(error.source(), "not TOML: " + shown(std::string(error.description()), 320));
  }
}

void DeckReader::read_override(const std::string& text) {
  override_ = text;
  ++order_;
  const size_t equals = text.find('=');
  const std::string path = text.substr(0, equals);
  const std::string leaf = path.substr(path.rfind('.') + 1);
  const toml::key name(leaf);
  if (equals == std::string::npos)
    return fault_at({}, "an override is section.key=value; there is no = here");
  find_module(path.substr(0, path.rfind('.')), {leaf});
  const Key* key = find_key(path);
  const std::string value = text.substr(equals + 1);
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

/// What is no key may be a section, whose keys are a table: model.llm.lora={rank=8}.
void DeckReader::read_section_override(const std::string& path, const toml::key& name,
                                       const std::string& value) {
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
  if (const Key* key = find_key(path)) return read_value(*key, node);
  if (const toml::table* table = node.as_table()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : *table) keys.emplace_back(key.str());
    find_module(path, keys);
  }
  if (is_section(path) && node.is_table()) return read_table(*node.as_table(), path);
  if (is_section(path))
    return fault_at(name.source(), path + " is a section, not " + type_words(node) + "; write [" +
                                       path + "] and its keys below");
  if (node.is_table()) return read_unknown_section(path, name, *node.as_table());
  fault_unknown_key(path, name);
}

/// Reads on as if the nearest section had been meant, so that one run shows what else is wrong.
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

void DeckReader::read_value(const Key& key, const toml::node& node) {
  places_[key.path()] = place_words(node.source().begin);
  std::visit([&](auto* member) { store(*member, key, node); }, key.member);
}

void DeckReader::store(std::string& member, const Key& key, const toml::node& node) {
  if (!node.is_string()) return fault_type("a string", key, node);
  const std::string& value = node.as_string()->get();
  const std::vector<std::string>& allowed = key.info.allowed;
  const std::string found = key.path() + " = " + node_text(node);
  suspects_.insert(key.path());
  if (value.find('\0') != std::string::npos)
    return fault_at(node.source(), found + " holds a NUL character");
  if (!is_utf8(value)) return fault_at(node.source(), found + " is not UTF-8");
  if (!allowed.empty() && std::count(allowed.begin(), allowed.end(), value) == 0) {
    const std::string advice = other_program_advice(value);
    return fault_at(node.source(), found + " is not allowed; use " + allowed_values(key) +
                                       (advice.empty() ? "" : "; " + advice));
  }
  suspects_.erase(key.path());
  member = value;
}

/// An element type may be spelled as PyTorch spells it.
void DeckReader::store(AnyChoice& member, const Key& key, const toml::node& node) {
  if (const std::optional<DType> dtype = find_dtype(node.value_or(std::string())))
    for (const char* allowed : member.names())
      if (find_dtype(allowed) == dtype) return member.choose(allowed);
  std::string name = member.name();
  store(name, key, node);
  member.choose(name);
}

void DeckReader::store(bool& member, const Key& key, const toml::node& node) {
  if (!node.is_boolean()) return fault_type("true or false", key, node);
  member = node.as_boolean()->get();
}

void DeckReader::store(int64_t& member, const Key& key, const toml::node& node) {
  if (!node.is_integer()) return fault_type("an integer", key, node);
  const int64_t value = node.as_integer()->get();
  if (in_range(static_cast<double>(value), key, node)) member = value;
}

void DeckReader::store(double& member, const Key& key, const toml::node& node) {
  if (!node.is_number()) return fault_type("a number", key, node);
  const double value = *node.value<double>();
  if (in_range(value, key, node)) member = value;
}

/// A key without a range takes no count.
void DeckReader::store(AutoOption& member, const Key& key, const toml::node& node) {
  const bool counts = std::isfinite(key.info.min);
  if (node.is_boolean()) {
    member = AutoOption::of(node.as_boolean()->get());
  } else if (node.is_string() && node.as_string()->get() == "auto") {
    member = AutoOption();
  } else if (counts && node.is_integer()) {
    const int64_t value = node.as_integer()->get();
    if (in_range(static_cast<double>(value), key, node)) member = AutoOption::of_count(value);
  } else {
    fault_type(counts ? "true, false, \"auto\" or an integer" : "true, false or \"auto\"", key,
               node);
  }
}

void DeckReader::store(std::optional<double>& member, const Key& key, const toml::node& node) {
  double value = 0;
  if (node.is_string() && node.as_string()->get() == "auto") {
    member.reset();
  } else if (!node.is_number()) {
    fault_type("a number or \"auto\"", key, node);
  } else {
    value = *node.value<double>();
    if (in_range(value, key, node)) member = value;
  }
}

void DeckReader::store(std::vector<double>& member, const Key& key, const toml::node& node) {
  if (!node.is_array()) return fault_type("a list of numbers", key, node);
  std::vector<double> values;
  for (const toml::node& entry : *node.as_array()) {
    if (!entry.is_number()) return fault_type("a list of numbers", key, entry);
    values.push_back(*entry.value<double>());
    if (!in_range(values.back(), key, entry)) return;
  }
  member = values;
}

void DeckReader::store(std::vector<std::string>& member, const Key& key, const toml::node& node) {
  if (!node.is_array()) return fault_type("a list of strings", key, node);
  std::vector<std::string> values;
  for (const toml::node& entry : *node.as_array()) {
    if (!entry.is_string()) return fault_type("a list of strings", key, entry);
    values.push_back(entry.as_string()->get());
  }
  member = values;
}

void DeckReader::store(std::vector<std::vector<std::string>>& member, const Key& key,
                       const toml::node& node) {
  constexpr const char* kNeeded = "a list of lists of strings";
  if (!node.is_array()) return fault_type(kNeeded, key, node);
  std::vector<std::vector<std::string>> lists;
  for (const toml::node& list : *node.as_array()) {
    if (!list.is_array()) return fault_type(kNeeded, key, list);
    lists.emplace_back();
    for (const toml::node& entry : *list.as_array()) {
      if (!entry.is_string()) return fault_type(kNeeded, key, entry);
      lists.back().push_back(entry.as_string()->get());
    }
  }
  member = lists;
}

constexpr const char* kSourcesNeeded =
    "a path, a list of paths, or a list of {path = \"...\", weight = 1.0}";

void DeckReader::store(DataSources& member, const Key& key, const toml::node& node) {
  if (node.is_string()) {
    std::string text;
    store(text, key, node);
    member = text;
    return;
  }
  if (!node.is_array()) return fault_type(kSourcesNeeded, key, node);
  DataSources sources;
  for (const toml::node& entry : *node.as_array())
    if (!read_source(sources.sets.emplace_back(), key, entry)) return;
  if (sources.sets.size() == 1 && sources.sets[0].weight != 1) {
    suspects_.insert(key.path());
    return fault_at(node.source(), key.path() +
                                       " has one set, to which a weight does nothing; "
                                       "leave the weight out");
  }
  member = sources;
}

bool DeckReader::read_source(DataSource& source, const Key& key, const toml::node& node) {
  const toml::table* table = node.as_table();
  const toml::node* path = table ? table->get("path") : &node;
  const toml::node* weight = table ? table->get("weight") : nullptr;
  const size_t known = (path != nullptr) + (weight != nullptr);
  if (path == nullptr || !path->is_string() || (table && table->size() != known) ||
      (weight && !weight->is_number())) {
    fault_type(kSourcesNeeded, key, node);
    return false;
  }
  store(source.path, key, *path);
  if (weight) source.weight = *weight->value<double>();
  if (!source.path.empty() && std::isfinite(source.weight) && source.weight > 0) return true;
  suspects_.insert(key.path());
  fault_at(node.source(), source.path.empty()
                              ? key.path() + " names a set without a path"
                              : key.path() + ": the weight of " + shown(source.path) + " is " +
                                    toml_text(source.weight) + "; allowed are numbers above 0");
  return false;
}

bool DeckReader::in_range(double value, const Key& key, const toml::node& node) {
  if (value >= key.info.min && value <= key.info.max && std::isfinite(value)) return true;
  const std::string allowed = allowed_values(key);
  const std::string found = key.path() + " = " + node_text(node);
  suspects_.insert(key.path());
  if (!std::isfinite(value))
    fault_at(node.source(),
             found + " is not a finite number" + (allowed.empty() ? "" : "; allowed: " + allowed));
  else
    fault_at(node.source(), found + " is out of range; allowed: " + allowed);
  return false;
}

void DeckReader::fault_type(const char* needed, const Key& key, const toml::node& node) {
  const std::string value = node_text(node);
  suspects_.insert(key.path());
  fault_at(node.source(), key.path() + (value.empty() ? "" : " = " + value) + " is " +
                              type_words(node) + "; it must be " + needed);
}

void DeckReader::fault_unknown_key(const std::string& path, const toml::key& name) {
  const std::vector<std::string> nearest = nearest_paths(path, paths_);
  suspects_.insert(nearest.begin(), nearest.end());
  fault_at(name.source(), shown(path) + " is not a key; " + key_advice(path, keys_));
}

void DeckReader::fault_at(const toml::source_region& where, const std::string& text) {
  faults_.push_back({order_, where.begin, text + " (" + place_words(where.begin) + ")"});
}

/// A broken rule between keys is worth telling only where none of them is already known to be
/// wrong.
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
  if (is_toml_)
    for (const OptionFault& broken : check_options(options_)) fault_between_keys(broken);
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

std::string read_at_most(const std::string& path, size_t bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file && !file.eof())
    throw DeckError("cannot read deck " + path + ": " + std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

Options read_deck(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_deck(read_at_most(path, kMaxDeckBytes + 1), path, overrides);
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
