// SPDX-License-Identifier: Apache-2.0
// Settings that each module of a model has: which modules there are, a deck does not know.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace zea {

/// The name of the decoder (the language model) in decks, logs and files. Encoders have the names
/// that a model's family gives them.
inline const std::string kDecoder = "llm";

/// The encoders whose sections `zea -h` shows, whatever the model; a deck may have those of others.
inline constexpr std::array kShownEncoders{"vision", "audio"};

/// What model.load_modules may name of a model with these encoders.
inline std::vector<std::string> parts_beside(std::vector<std::string> encoders) {
  encoders.insert(encoders.end(), {"projector", kDecoder});
  return encoders;
}

/// Settings by a module's name, in the order of their sections.
template <class Settings>
class ByModule {
 public:
  /// Of kShownEncoders and of `modules`.
  ByModule(std::initializer_list<std::string> modules = {}) {
    for (const char* encoder : kShownEncoders) (*this)[encoder];
    for (const std::string& module : modules) (*this)[module];
  }

  /// Defaults where no section is the module's.
  const Settings& operator[](const std::string& module) const {
    static const Settings kDefaults;
    for (const auto& [name, settings] : sections_)
      if (name == module) return settings;
    return kDefaults;
  }
  /// A module without a section gets one, which moves no other.
  Settings& operator[](const std::string& module) {
    for (auto& [name, settings] : sections_)
      if (name == module) return settings;
    return sections_.emplace_back(module, Settings{}).second;
  }

  bool has(const std::string& module) const {
    const auto is_it = [&](const auto& section) { return section.first == module; };
    return std::any_of(sections_.begin(), sections_.end(), is_it);
  }

  auto begin() { return sections_.begin(); }
  auto end() { return sections_.end(); }
  auto begin() const { return sections_.begin(); }
  auto end() const { return sections_.end(); }

 private:
  std::deque<std::pair<std::string, Settings>> sections_;
};

}  // namespace zea
