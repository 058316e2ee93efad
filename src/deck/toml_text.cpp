// SPDX-License-Identifier: Apache-2.0
// Options as text: single values, and the echo of a resolved deck.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/key_table.hpp"

namespace zea {
namespace {

/// Returns the shortest text that reads back as the same double.
std::string shortest(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

/// Returns 1000000 rather than 1e+06, which a deck takes as an integer.
std::string bound_text(double value) {
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e16;
  return is_whole ? std::to_string(static_cast<int64_t>(value)) : shortest(value);
}

std::string escaped(unsigned char c) {
  constexpr const char* kHex = "0123456789ABCDEF";
  if (c == '"' || c == '\\') return {'\\', static_cast<char>(c)};
  if (c >= 0x20 && c != 0x7f) return std::string(1, static_cast<char>(c));
  return std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
}

}  // namespace

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) text += escaped(static_cast<unsigned char>(c));
  return text + "\"";
}

std::string toml_text(const AnyChoice& value) {
  return toml_text(value.name());
}

std::string toml_text(bool value) {
  return value ? "true" : "false";
}

std::string toml_text(int64_t value) {
  return std::to_string(value);
}

std::string toml_text(double value) {
  const std::string text = shortest(value);
  const bool looks_like_an_integer = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_like_an_integer ? text + ".0" : text;
}

std::string toml_text(const AutoOption& value) {
  if (value.is_auto()) return toml_text(std::string("auto"));
  if (value.is_selective()) return toml_text(std::string("selective"));
  return value.is_count() ? toml_text(value.count()) : toml_text(value.is_yes());
}

std::string toml_text(const std::optional<double>& value) {
  return value ? toml_text(*value) : toml_text(std::string("auto"));
}

template <class T>
std::string list_text(const std::vector<T>& value) {
  return "[" + join(value, ", ", [](const T& entry) { return toml_text(entry); }) + "]";
}

std::string toml_text(const std::vector<double>& value) {
  return list_text(value);
}

std::string toml_text(const std::vector<std::string>& value) {
  return list_text(value);
}

std::string toml_text(const std::vector<std::vector<std::string>>& value) {
  return list_text(value);
}

std::string toml_text(const DataSource& value) {
  return "{path = " + toml_text(value.path) + ", weight = " + toml_text(value.weight) + "}";
}

/// Returns one set as its path.
std::string toml_text(const DataSources& value) {
  if (value.sets.size() > 1) return list_text(value.sets);
  return toml_text(value.empty() ? std::string() : value.sets[0].path);
}

std::string toml_text(const KeyMember& member) {
  return std::visit([](const auto* value) { return toml_text(*value); }, member);
}

std::string allowed_values(const Key& key) {
  const KeyInfo& info = key.info;
  if (std::holds_alternative<AutoOption*>(key.member)) {
    const bool counts = std::isfinite(info.range.min);
    return std::string("true, false") + (info.allowed.empty() ? "" : ", \"selective\"") +
           (counts ? ", " : " or ") + "\"auto\"" +
           (counts ? " or " + bound_text(info.range.min) + " to " + bound_text(info.range.max)
                   : "");
  }
  if (!info.allowed.empty()) {
    std::vector<std::string> quoted;
    for (const std::string& value : info.allowed) quoted.push_back(toml_text(value));
    return join_words(quoted);
  }
  if (std::holds_alternative<std::optional<double>*>(key.member))
    return "\"auto\" or " + bound_text(info.range.min) + " to " + bound_text(info.range.max);
  if (std::isfinite(info.range.min) && std::isfinite(info.range.max))
    return bound_text(info.range.min) + " to " + bound_text(info.range.max);
  if (std::isfinite(info.range.min)) return "at least " + bound_text(info.range.min);
  if (std::isfinite(info.range.max)) return "at most " + bound_text(info.range.max);
  return "";
}

std::vector<ChangedKey> changed_keys(const Options& options) {
  Options copy = options, defaults;
  for (const std::string& section : list_sections(copy)) add_module_section(defaults, section, {});
  std::map<std::string, std::string> standard;
  for (const Key& key : list_keys(defaults)) standard[key.path()] = toml_text(key.member);
  std::vector<ChangedKey> changed;
  for (const Key& key : list_keys(copy)) {
    const std::string text = toml_text(key.member);
    if (standard.at(key.path()) == text) continue;
    const size_t dot = key.section.find('.');
    std::string module = dot == std::string::npos ? "" : key.section.substr(dot + 1);
    module.resize(std::min(module.size(), module.find('.')));
    changed.push_back({key.path(), key.path() + " = " + text, module});
  }
  return changed;
}

std::string echo_deck(const Options& options) {
  Options copy = options;
  std::string text, section;
  for (const Key& key : list_keys(copy)) {
    if (key.section != section) text += (text.empty() ? "[" : "\n[") + key.section + "]\n";
    section = key.section;
    const std::string allowed = allowed_values(key);
    text +=
        "# " + std::string(key.info.help) + (allowed.empty() ? "" : " (" + allowed + ")") + "\n";
    text += std::string(key.info.name) + " = " + toml_text(key.member) + "\n";
  }
  return text;
}

}  // namespace zea
