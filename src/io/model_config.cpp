// SPDX-License-Identifier: Apache-2.0
#include "zea/io/model_config.hpp"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "strict_json.hpp"
#include "zea/io/companions.hpp"
#include "zea/plan/model/model_spec.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// Null: there is none.
nlohmann::json read_if_there(const fs::path& path) {
  if (!fs::is_regular_file(path)) return {};
  return parse_strict_json(read_model_text(path.string()), path.string());
}

/// What makes sound ready has a file of the same name.
bool is_of_sound(const nlohmann::json& processor) {
  return processor.contains("sampling_rate") || processor.contains("feature_size");
}

nlohmann::json image_processor_in(const fs::path& directory) {
  const nlohmann::json whole = read_if_there(directory / "processor_config.json");
  if (whole.contains(kImageProcessor)) return whole[kImageProcessor];
  nlohmann::json alone = read_if_there(directory / "preprocessor_config.json");
  return is_of_sound(alone) ? nlohmann::json() : alone;
}

}  // namespace

std::string read_model_config(const std::string& path) {
  const std::string text = read_model_text(path);
  nlohmann::json processor = image_processor_in(fs::path(path).parent_path());
  if (processor.is_null()) return text;
  nlohmann::json config = parse_strict_json(text, path);
  if (!config.is_object()) return text;
  config[kImageProcessor] = std::move(processor);
  return config.dump();
}

}  // namespace zea
