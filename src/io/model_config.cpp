// SPDX-License-Identifier: Apache-2.0
#include "io/model_config.hpp"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "io/companions.hpp"
#include "io/strict_json.hpp"
#include "spec/model_spec.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWholeProcessor = "processor_config.json";

/// Null: there is none.
nlohmann::json read_if_there(const fs::path& path) {
  if (!names_entry(path.string())) return {};
  return parse_strict_json(read_model_text(path.string()), path.string());
}

/// What makes sound ready has a file of the same name.
bool is_of_sound(const nlohmann::json& processor) {
  return processor.contains("sampling_rate") || processor.contains("feature_size");
}

/// A part of processor_config.json, or else a file of its own.
nlohmann::json processor_in(const fs::path& directory, const char* key, const char* file) {
  const nlohmann::json whole = read_if_there(directory / kWholeProcessor);
  if (whole.contains(key)) return whole[key];
  nlohmann::json alone = read_if_there(directory / file);
  return is_of_sound(alone) ? nlohmann::json() : alone;
}

/// Of what the file says, what ends a text; null: nothing.
nlohmann::json end_tokens_in(const fs::path& directory) {
  const nlohmann::json said = read_if_there(directory / "generation_config.json");
  if (!said.is_object()) return {};
  return said.value("eos_token_id", nlohmann::json());
}

/// A key of zea's own, and the file of which it holds a part.
struct FileOfKey {
  const char *key, *file;
};
constexpr FileOfKey kFiles[] = {{kImageProcessor, "preprocessor_config.json"},
                                {kVideoProcessor, "video_preprocessor_config.json"},
                                {kGenerationConfig, "generation_config.json"}};

}  // namespace

std::string read_model_config(const std::string& path) {
  std::string text = read_model_text(path);
  if (text.empty()) throw WeightsError(path + ": is empty");
  const fs::path directory = fs::path(path).parent_path();
  nlohmann::json images = processor_in(directory, kImageProcessor, kFiles[0].file);
  nlohmann::json videos = processor_in(directory, kVideoProcessor, kFiles[1].file);
  const nlohmann::json ends = end_tokens_in(directory);
  if (images.is_null() && videos.is_null() && ends.is_null()) return text;
  nlohmann::json config = parse_strict_json(text, path);
  if (!config.is_object()) return text;
  if (!images.is_null()) config[kImageProcessor] = std::move(images);
  if (!videos.is_null()) config[kVideoProcessor] = std::move(videos);
  if (!ends.is_null()) config[kGenerationConfig]["eos_token_id"] = ends;
  return config.dump();
}

std::string file_of_config_key(const std::string& path, const std::string& key) {
  const fs::path directory = fs::path(path).parent_path();
  for (const auto& [of, file] : kFiles) {
    if (!key.starts_with(of)) continue;
    const fs::path alone = directory / file, whole = directory / kWholeProcessor;
    return read_if_there(whole).contains(of) ? whole : alone;
  }
  return path;
}

ModelSpec model_spec_of(const WeightsSource& source) {
  return naming_file(source, [&] { return make_model_spec(source.config_json()); });
}

}  // namespace zea
