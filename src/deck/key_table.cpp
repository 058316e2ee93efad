// SPDX-License-Identifier: Apache-2.0
#include "deck/key_table.hpp"

#include <algorithm>
#include <cmath>

#include "core/text.hpp"

namespace zea {
namespace {

// Another prefix costs more than one typing error, less than two.
constexpr double kOtherPrefixCost = 1.5;

constexpr RetiredKey kRetired[] = {
    {"mesh.", "dp_module", "0", "encoder_dp", ""},
    {"data", "prefetch", "2", "", "the loader prepares 2 steps ahead; leave it out"},
    {"checkpoint", "stage", "false", "",
     "an update copies what is not yet written, at the speed of memory; leave it out"},
};

struct DottedPath {
  std::string prefix;
  std::string leaf;
};

DottedPath split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// Returns infinity where the two have too little in common.
double path_distance(const DottedPath& asked, const DottedPath& known) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const size_t longer = std::max(asked.leaf.size(), known.leaf.size());
  const size_t shorter = std::min(asked.leaf.size(), known.leaf.size());
  const size_t limit = 1 + known.leaf.size() / 4;
  if (longer - shorter > limit) return kFar;
  const size_t edits = edit_distance(asked.leaf, known.leaf);
  if (edits > limit || edits >= longer) return kFar;
  return static_cast<double>(edits) + (asked.prefix == known.prefix ? 0 : kOtherPrefixCost);
}

}  // namespace

std::vector<Key> list_keys(Options& options) {
  std::vector<Key> keys;
  options.visit_sections([&](const char* section, auto& members) {
    members.visit([&](auto& member, KeyInfo info) {
      if constexpr (requires { member.names(); })
        info.allowed.assign(member.names().begin(), member.names().end());
      keys.push_back({section, std::move(info), &member});
    });
  });
  return keys;
}

std::vector<std::string> list_sections(Options& options) {
  std::vector<std::string> sections;
  options.visit_sections([&](const char* section, auto&) { sections.emplace_back(section); });
  return sections;
}

void add_module_section(Options& options, const std::string& section,
                        const std::vector<std::string>& keys) {
  const DottedPath path = split_path(section);
  if (path.leaf == "lora" && path.prefix.starts_with("model."))
    return add_module_section(options, path.prefix, {"lora"});
  const auto& [prefix, module] = path;
  constexpr const char* kNameLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  if (module.empty() || module.find_first_not_of(kNameLetters) != std::string::npos) return;
  const auto add_to = [&, &prefix = path.prefix, &name = path.leaf](auto& settings) {
    bool is_known =
        keys.empty() || (prefix == "model" && std::count(keys.begin(), keys.end(), "lora") > 0);
    settings.begin()->second.visit([&](auto&, const KeyInfo& info) {
      is_known |= std::count(keys.begin(), keys.end(), info.name) > 0;
    });
    if (is_known) settings[name];
  };
  if (prefix == "model") add_to(options.encoders);
  if (prefix == "mesh") add_to(options.meshes);
  if (prefix == "precision") add_to(options.precisions);
}

std::vector<std::string> nearest_paths(const std::string& path,
                                       const std::vector<std::string>& paths) {
  const DottedPath asked = split_path(path);
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::string> nearest;
  for (const std::string& candidate : paths) {
    const double distance = path_distance(asked, split_path(candidate));
    if (distance < best) nearest.clear();
    best = std::min(best, distance);
    if (std::isfinite(distance) && distance == best) nearest.push_back(candidate);
  }
  return nearest;
}

const RetiredKey* retired_key(const std::string& path) {
  const auto [prefix, leaf] = split_path(path);
  for (const RetiredKey& key : kRetired)
    if (leaf == key.name && prefix.starts_with(key.section)) return &key;
  return nullptr;
}

std::string current_path(const std::string& path) {
  const RetiredKey* retired = retired_key(path);
  if (!retired || retired->now.empty()) return path;
  return split_path(path).prefix + "." + std::string(retired->now);
}

std::string key_advice(const std::string& path, const std::vector<Key>& keys) {
  if (std::string advice = other_program_advice(path); !advice.empty()) return advice;
  const std::string section = split_path(path).prefix;
  std::vector<std::string> paths, siblings;
  for (const Key& key : keys) {
    paths.push_back(key.path());
    if (key.section == section) siblings.emplace_back(key.info.name);
  }
  const std::vector<std::string> nearest = nearest_paths(path, paths);
  if (!nearest.empty()) return "did you mean " + join_words(nearest) + "?";
  return siblings.empty() ? "zea -h lists the keys of each section"
                          : "[" + section + "] has " + join_words(siblings);
}

std::string shown(const std::string& text, size_t max_bytes) {
  std::string line;
  for (const char c : text.substr(0, max_bytes))
    line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > max_bytes ? line + "..." : line;
}

std::string join_words(const std::vector<std::string>& words) {
  std::string sentence;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) sentence += i + 1 == words.size() ? " or " : ", ";
    sentence += words[i];
  }
  return sentence;
}

}  // namespace zea
