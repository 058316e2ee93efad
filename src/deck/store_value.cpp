// SPDX-License-Identifier: Apache-2.0
#include "deck/store_value.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

constexpr size_t kMaxTextBytes = 1 << 20;
constexpr size_t kMaxDotsInLine = 1000;  // toml++ frees a table per dot by recursion

constexpr const char* kSourcesNeeded =
    "a path, a list of paths, or a list of {path = \"...\", weight = 1.0}";

/// Stores a value by the type of the member; the first fault is kept.
class ValueReader {
 public:
  explicit ValueReader(const Key& key) : key_(key) {}

  std::optional<ValueFault> fault() const { return fault_; }

  void store(std::string& member, const toml::node& node);
  void store(AnyChoice& member, const toml::node& node);
  void store(bool& member, const toml::node& node);
  void store(int64_t& member, const toml::node& node);
  void store(double& member, const toml::node& node);
  void store(AutoOption& member, const toml::node& node);
  void store(std::optional<double>& member, const toml::node& node);
  void store(std::vector<double>& member, const toml::node& node);
  void store(std::vector<std::string>& member, const toml::node& node);
  void store(std::vector<std::vector<std::string>>& member, const toml::node& node);
  void store(DataSources& member, const toml::node& node);

 private:
  bool read_source(DataSource& source, const toml::node& node);
  bool read_strings(std::vector<std::string>& values, const char* needed, const toml::node& node);
  bool in_range(double value, const toml::node& node);
  void fault_type(const std::string& needed, const toml::node& node);
  /// `text` continues the key's name.
  void fail(const toml::node& node, const std::string& text) {
    if (!fault_) fault_ = {node.source(), key_.path() + text};
  }

  const Key& key_;
  std::optional<ValueFault> fault_;
};

void ValueReader::store(std::string& member, const toml::node& node) {
  if (!node.is_string()) return fault_type("a string", node);
  const std::string &value = node.as_string()->get(), found = " = " + node_text(node);
  const std::vector<std::string>& allowed = key_.info.allowed;
  if (value.find('\0') != std::string::npos) return fail(node, found + " holds a NUL character");
  if (!is_utf8(value)) return fail(node, found + " is not UTF-8");
  if (!allowed.empty() && std::count(allowed.begin(), allowed.end(), value) == 0) {
    const std::string advice = other_program_advice(value);
    return fail(node, found + " is not allowed; use " + allowed_values(key_) +
                          (advice.empty() ? "" : "; " + advice));
  }
  member = value;
}

/// Accepts PyTorch's names of element types, too.
void ValueReader::store(AnyChoice& member, const toml::node& node) {
  if (const std::optional<DType> dtype = find_dtype(node.value_or(std::string())))
    for (const char* allowed : member.names())
      if (find_dtype(allowed) == dtype) return member.choose(allowed);
  std::string name = member.name();
  store(name, node);
  member.choose(name);
}

void ValueReader::store(bool& member, const toml::node& node) {
  if (!node.is_boolean()) return fault_type("true or false", node);
  member = node.as_boolean()->get();
}

void ValueReader::store(int64_t& member, const toml::node& node) {
  if (!node.is_integer()) return fault_type("an integer", node);
  const int64_t value = node.as_integer()->get();
  if (in_range(static_cast<double>(value), node)) member = value;
}

void ValueReader::store(double& member, const toml::node& node) {
  if (!node.is_number()) return fault_type("a number", node);
  const double value = *node.value<double>();
  if (in_range(value, node)) member = value;
}

/// A key with a range takes a count, too.
void ValueReader::store(AutoOption& member, const toml::node& node) {
  const bool counts = std::isfinite(key_.info.range.min);
  const bool may_select = !key_.info.allowed.empty();
  if (node.is_boolean()) {
    member = AutoOption::of(node.as_boolean()->get());
  } else if (may_select && node.value_or(std::string()) == "selective") {
    member = AutoOption::selective();
  } else if (node.is_string() && node.as_string()->get() == "auto") {
    member = AutoOption();
  } else if (counts && node.is_integer()) {
    const int64_t value = node.as_integer()->get();
    if (in_range(static_cast<double>(value), node)) member = AutoOption::of_count(value);
  } else {
    const std::string words = std::string("true, false") + (may_select ? ", \"selective\"" : "");
    fault_type(words + (counts ? ", \"auto\" or an integer" : " or \"auto\""), node);
  }
}

void ValueReader::store(std::optional<double>& member, const toml::node& node) {
  if (node.is_string() && node.as_string()->get() == "auto") return member.reset();
  if (!node.is_number()) return fault_type("a number or \"auto\"", node);
  const double value = *node.value<double>();
  if (in_range(value, node)) member = value;
}

void ValueReader::store(std::vector<double>& member, const toml::node& node) {
  if (!node.is_array()) return fault_type("a list of numbers", node);
  std::vector<double> values;
  for (const toml::node& entry : *node.as_array()) {
    if (!entry.is_number()) return fault_type("a list of numbers", entry);
    values.push_back(*entry.value<double>());
    if (!in_range(values.back(), entry)) return;
  }
  member = values;
}

void ValueReader::store(std::vector<std::string>& member, const toml::node& node) {
  std::vector<std::string> values;
  if (read_strings(values, "a list of strings", node)) member = values;
}

void ValueReader::store(std::vector<std::vector<std::string>>& member, const toml::node& node) {
  constexpr const char* kNeeded = "a list of lists of strings";
  if (!node.is_array()) return fault_type(kNeeded, node);
  std::vector<std::vector<std::string>> lists;
  for (const toml::node& list : *node.as_array())
    if (!read_strings(lists.emplace_back(), kNeeded, list)) return;
  member = lists;
}

bool ValueReader::read_strings(std::vector<std::string>& values, const char* needed,
                               const toml::node& node) {
  const toml::node* wrong = node.is_array() ? nullptr : &node;
  for (size_t i = 0; !wrong && i < node.as_array()->size(); ++i) {
    const toml::node& entry = *node.as_array()->get(i);
    if (entry.is_string())
      values.push_back(entry.as_string()->get());
    else
      wrong = &entry;
  }
  if (wrong) fault_type(needed, *wrong);
  return !wrong;
}

void ValueReader::store(DataSources& member, const toml::node& node) {
  if (node.is_string()) {
    std::string text;
    store(text, node);
    member = text;
    return;
  }
  if (!node.is_array()) return fault_type(kSourcesNeeded, node);
  DataSources sources;
  for (const toml::node& entry : *node.as_array())
    if (!read_source(sources.sets.emplace_back(), entry)) return;
  if (sources.sets.size() == 1 && sources.sets[0].weight != 1)
    return fail(node, " has one set, to which a weight does nothing; leave the weight out");
  member = sources;
}

bool ValueReader::read_source(DataSource& source, const toml::node& node) {
  const toml::table* table = node.as_table();
  const toml::node* path = table ? table->get("path") : &node;
  const toml::node* weight = table ? table->get("weight") : nullptr;
  const size_t known = (path != nullptr) + (weight != nullptr);
  if (path == nullptr || !path->is_string() || (table && table->size() != known) ||
      (weight && !weight->is_number())) {
    fault_type(kSourcesNeeded, node);
    return false;
  }
  store(source.path, *path);
  if (weight) source.weight = *weight->value<double>();
  if (!source.path.empty() && std::isfinite(source.weight) && source.weight > 0) return true;
  fail(node, source.path.empty() ? " names a set without a path"
                                 : ": the weight of " + shown(source.path) + " is " +
                                       toml_text(source.weight) + "; allowed are numbers above 0");
  return false;
}

bool ValueReader::in_range(double value, const toml::node& node) {
  if (value >= key_.info.range.min && value <= key_.info.range.max && std::isfinite(value))
    return true;
  const std::string allowed = allowed_values(key_);
  fail(node, " = " + node_text(node) +
                 (std::isfinite(value) ? " is out of range" : " is not a finite number") +
                 (allowed.empty() ? "" : "; allowed: " + allowed));
  return false;
}

void ValueReader::fault_type(const std::string& needed, const toml::node& node) {
  const std::string value = node_text(node);
  fail(node,
       (value.empty() ? "" : " = " + value) + " is " + type_words(node) + "; it must be " + needed);
}

}  // namespace

std::optional<ValueFault> store_value(const Key& key, const toml::node& node) {
  ValueReader reader(key);
  std::visit([&](auto* member) { reader.store(*member, node); }, key.member);
  return reader.fault();
}

std::string read_toml_text(const std::string& kind, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxTextBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof())
    throw DeckError("cannot read " + kind + " " + path + ": " + std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

void check_toml_text(const std::string& kind, const std::string& name, const std::string& text) {
  if (text.size() > kMaxTextBytes)
    throw DeckError(kind + " " + name + " is larger than 1 MiB; is it a " + kind + "?");
  size_t dots = 0;
  for (const char c : text) {
    dots = c == '\n' ? 0 : dots + (c == '.' ? 1 : 0);
    if (dots > kMaxDotsInLine)
      throw DeckError(kind + " " + name + " has a line with over 1000 dots; is it a " + kind + "?");
  }
}

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

}  // namespace zea
