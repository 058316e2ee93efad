// SPDX-License-Identifier: Apache-2.0
#include "zea/io/companions.hpp"

#include <filesystem>

#include "zea/io/durable_file.hpp"

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
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "video_preprocessor_config.json",
                                  "vocab.json"};

}  // namespace

std::vector<std::string> companion_names(const std::string& directory) {
  std::vector<std::string> present;
  for (const char* name : kNames)
    if (std::filesystem::is_regular_file(std::filesystem::path(directory) / name))
      present.push_back(name);
  return present;
}

std::string read_model_text(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path resolved = std::filesystem::canonical(path, ignored);
  return read_text(resolved.empty() ? path : resolved.string(), kMaxTextBytes);
}

}  // namespace zea
