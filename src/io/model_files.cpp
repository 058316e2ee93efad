// SPDX-License-Identifier: Apache-2.0
#include "io/model_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/open_source.hpp"
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

/// Keys of a feature extractor. Its file has the name of that of images, and may have both.
constexpr const char* kOfAudio[] = {"chunk_length",
                                    "dither",
                                    "feature_extractor_type",
                                    "feature_size",
                                    "fft_length",
                                    "fft_overdrive",
                                    "frame_length",
                                    "frame_length_ms",
                                    "hop_length",
                                    "hop_length_ms",
                                    "input_scale_factor",
                                    "max_frequency",
                                    "mel_floor",
                                    "min_frequency",
                                    "n_fft",
                                    "n_samples",
                                    "nb_max_frames",
                                    "padding_side",
                                    "padding_value",
                                    "per_bin_mean",
                                    "per_bin_stddev",
                                    "preemphasis",
                                    "preemphasis_htk_flavor",
                                    "return_attention_mask",
                                    "sampling_rate"};

/// Splits a feature extractor from one of images, or of videos, in one file; null: there is none.
void split_audio(nlohmann::json& images, nlohmann::json& audio) {
  audio = {};
  if (!images.contains("sampling_rate") && !images.contains("feature_size")) return;
  if (!images.contains("image_mean") && !images.contains("image_processor_type")) {
    audio = std::exchange(images, {});
    return;
  }
  for (const char* key : kOfAudio)
    if (images.contains(key)) {
      audio[key] = images[key];
      images.erase(key);
    }
}

/// Returns a section of processor_config.json, or else its separate file. transformers writes the
/// keys of both processors into both sections if they came from one file.
nlohmann::json processor_in(const fs::path& directory, const char* key, const char* file) {
  const nlohmann::json whole = read_if_there(directory / kWholeProcessor);
  nlohmann::json images = whole.contains(key) ? whole[key] : read_if_there(directory / file), audio;
  split_audio(images, audio);
  return key == std::string(kFeatureExtractor) ? audio : images;
}

/// Returns the tokens that end a text, from generation_config.json; null: none.
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
                                {kFeatureExtractor, "preprocessor_config.json"},
                                {kGenerationConfig, "generation_config.json"}};

/// `path`: of the config.json, for errors.
std::optional<Quantization> quantization_in(const nlohmann::json& config, const std::string& path) {
  try {
    return quantization_of(config);
  } catch (const ConfigError& error) {
    throw WeightsError(path + ": " + error.key + error.fault);
  }
}

}  // namespace

std::string read_model_config(const std::string& path) {
  std::string text = read_model_text(path);
  if (text.empty()) throw WeightsError(path + ": is empty");
  nlohmann::json config = parse_strict_json(text, path);
  if (!config.is_object()) return text;
  const bool is_quantized = quantization_in(config, path).has_value();
  if (is_quantized) config = without_quantization(std::move(config));
  const fs::path directory = fs::path(path).parent_path();
  nlohmann::json images = processor_in(directory, kImageProcessor, kFiles[0].file);
  nlohmann::json videos = processor_in(directory, kVideoProcessor, kFiles[1].file);
  nlohmann::json sound = processor_in(directory, kFeatureExtractor, kFiles[2].file);
  const nlohmann::json ends = end_tokens_in(directory);
  const bool is_alone = images.is_null() && videos.is_null() && sound.is_null() && ends.is_null();
  if (is_alone && !is_quantized) return text;
  if (!images.is_null()) config[kImageProcessor] = std::move(images);
  if (!videos.is_null()) config[kVideoProcessor] = std::move(videos);
  if (!sound.is_null()) config[kFeatureExtractor] = std::move(sound);
  if (!ends.is_null()) config[kGenerationConfig]["eos_token_id"] = ends;
  return config.dump();
}

std::optional<Quantization> read_quantization(const std::string& path) {
  return quantization_in(parse_strict_json(read_model_text(path), path), path);
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
                                  "spk_dict.pt",  // voices of Qwen2.5-Omni's talker
                                  "tekken.json",
                                  "tokenizer.json",
                                  "tokenizer.model",
                                  "tokenizer_config.json",
                                  "video_preprocessor_config.json",
                                  "vocab.json"};

}  // namespace

// In a composed model an encoder's processor files have the encoder's name before their own.
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
