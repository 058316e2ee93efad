// SPDX-License-Identifier: Apache-2.0
#include "io/companions.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <sys/stat.h>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/foreign_weights.hpp"

namespace zea {
namespace {

constexpr int64_t kMaxTextBytes = 256 << 20;

constexpr const char* kNames[] = {"added_tokens.json",
                                  "chat_template.jinja",
                                  "chat_template.json",
                                  "generation_config.json",
                                  "merges.txt",
                                  "preprocessor_config.json",
                                  "processor_config.json",
                                  "special_tokens_map.json",
                                  "tekken.json",
                                  "tokenizer.json",
                                  "tokenizer.model",
                                  "tokenizer_config.json",
                                  "video_preprocessor_config.json",
                                  "vocab.json"};

}  // namespace

// Of a model put together of several the processors of an encoder have its name before their own.
bool is_companion(const std::string& name) {
  return std::ranges::any_of(kNames, [&](const std::string& known) {
    const bool is_of_encoder = known.ends_with("processor_config.json") &&
                               name.ends_with("." + known) && name.find('/') == std::string::npos;
    return name == known || is_of_encoder;
  });
}

std::vector<std::string> companion_names(const std::string& directory) {
  std::vector<std::string> present;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none))
    if (std::string name = entry.path().filename();
        is_companion(name) && (entry.is_regular_file(none) || entry.is_symlink(none)))
      present.push_back(std::move(name));
  std::ranges::sort(present);
  return present;
}

std::string read_model_text(const std::string& path) {
  std::error_code fault;
  const std::filesystem::path resolved = std::filesystem::canonical(path, fault);
  if (fault) throw WeightsError(path + ": cannot open: " + fault.message());
  std::string text = read_text(resolved.string(), kMaxTextBytes);
  if (const std::string found = foreign_text(text); !found.empty())
    throw WeightsError(path + ": " + found);
  return text;
}

bool names_entry(const std::string& path) {
  std::error_code fault;
  return std::filesystem::exists(std::filesystem::symlink_status(path, fault));
}

void write_companions(const WeightsSource& source, const std::string& directory) {
  for (const std::string& name : companion_names(directory)) remove_file(directory + "/" + name);
  for (const std::string& name : source.companions()) {
    if (!is_companion(name)) continue;
    if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST)
      throw_storage_error("make", directory, errno);
    write_text_durably(directory + "/" + name, source.companion(name));
  }
}

}  // namespace zea
