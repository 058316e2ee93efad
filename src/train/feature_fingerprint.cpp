// SPDX-License-Identifier: Apache-2.0
#include "train/cache_features.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"
#include "files/durable_file.hpp"
#include "io/manifest.hpp"
#include "spec/adapters.hpp"

namespace zea::detail {
namespace {

constexpr const char* kFormat = "zea.features 1";
constexpr int64_t kMostBytes = 1 << 16;  ///< of a fingerprint's file

/// Hashes the values that blocks compute with, which the ranks read in turn. A sum, so that
/// order and number of the ranks do not count; in halves that do not overflow.
std::string hash_weights(const CachedRun& run, int encoder) {
  const Plan& plan = run.engine.plan();
  std::set<int> params;
  for (size_t u = 0; u < plan.model.units.size(); ++u)
    if (plan.model.units[u].encoder == encoder && plan.model.is_cached(static_cast<int>(u)))
      params.insert(plan.model.units[u].params.begin(), plan.model.units[u].params.end());
  uint64_t halves[2] = {0, 0};
  agree(run.control, [&] {
    int number = 0;
    for (const int p : params) {
      const ParamSpec& param = plan.model.params[p];
      if (!param.begins_tensor() || number++ % run.control.size() != run.control.rank()) continue;
      const Shape shape = param.tensor_shape();
      const DType type = plan.precision_of(param.module).param;
      std::vector<uint8_t> values(static_cast<size_t>(num_elements(shape)) * element_bytes(type));
      read_frozen(plan, run.weights, param.name, shape, whole(shape), type, values.data());
      const std::string hash =
          hash_text(param.name + hash_bytes(values.data(), std::ssize(values)));
      halves[0] += std::stoull(hash.substr(0, 8), nullptr, 16);
      halves[1] += std::stoull(hash.substr(8, 8), nullptr, 16);
    }
  });
  run.control.all_reduce(halves, 2, DType::Int64, ReduceOp::Sum).wait();
  return hash_bytes(halves, sizeof halves);
}

std::string hash_config(const Plan& plan) {
  nlohmann::json config = nlohmann::json::parse(plan.config_json);
  config.erase(kAdapters);
  return hash_text(config.dump());
}

/// Hashes the settings between an item's bytes and the encoder's input.
std::string hash_preprocessing(const CachedRun& run, int encoder) {
  const ItemDecoding& decoding = run.loading.encoders[static_cast<size_t>(encoder)];
  std::ostringstream text;
  text.precision(17);
  const ImageOptions& image = decoding.image;
  for (const std::vector<double>& of_channels : {image.mean, image.std})
    for (const double value : of_channels) text << value << ' ';
  text << image.size << ' ' << image.patch_size << ' ' << image.crops << ' ' << image.shortest_edge
       << ' ' << static_cast<int>(image.resampling) << ' ' << image.by_torchvision << ' '
       << image.scale << ' ' << image.has_crops_beside << ' ' << image.has_tiles << ' '
       << image.longest_side << ' ' << image.max_pixels << ' ' << run.loading.max_clip_seconds
       << ' ' << run.loading.mask_bad_items;
  for (const std::optional<ImagesPadded>& padded : {image.padded, decoding.padded_frame})
    if (padded) text << ' ' << padded->pixels.most << ' ' << padded->side;
  if (decoding.frame_side > 0) text << ' ' << decoding.frame_side;
  if (decoding.mel)
    text << ' ' << decoding.mel->options().mel_bins << ' ' << decoding.mel->options().columns();
  return hash_text(text.str());
}

/// Hashes how many items each sample has, and their shapes.
std::string hash_index(const CachedRun& run, int encoder) {
  std::vector<int64_t> numbers;
  for (const SampleIndex& sample : run.train.index()) {
    numbers.push_back(sample.items.of(encoder));
    for (const ItemList::Run& items : sample.items.runs()) {
      if (items.encoder != encoder) continue;
      const ItemShape& shape = items.shape;
      const FittedGrid grid = shape.fitted.value_or(FittedGrid{});
      numbers.insert(numbers.end(),
                     {items.items, shape.tokens, shape.features, shape.width, shape.tiles,
                      shape.tiles_wide, grid.rows_around, grid.columns_around, shape.frames});
    }
  }
  return hash_bytes(numbers.data(), std::ssize(numbers) * static_cast<int64_t>(sizeof(int64_t)));
}

}  // namespace

std::map<std::string, std::string> feature_fingerprint(const CachedRun& run, int encoder) {
  const Plan& plan = run.engine.plan();
  const std::string& module = plan.model.encoders[static_cast<size_t>(encoder)].name;
  return {{"format", kFormat},
          {"weights", hash_weights(run, encoder)},
          {"config", hash_config(plan)},
          {"preprocessing", hash_preprocessing(run, encoder)},
          {"data", hash_index(run, encoder)},
          {"type", dtype_name(plan.precision_of(module).param)}};
}

void check_fingerprint(const std::string& folder, const std::map<std::string, std::string>& now) {
  const std::string path = folder + "/fingerprint.json";
  if (!std::filesystem::exists(path)) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw_storage_error("mkdir", folder, error.value());
    return write_text_durably(path, nlohmann::json(now).dump(2) + "\n");
  }
  const nlohmann::json then = nlohmann::json::parse(read_text(path, kMostBytes), nullptr, false);
  std::string other;
  for (const auto& [kind, hash] : now)
    if (!then.is_object() || then.value(kind, nlohmann::json()) != hash)
      other += (other.empty() ? "other " : ", other ") + kind;
  if (!other.empty())
    throw DataError(folder + " keeps features that were made with " + other +
                    ", so they cannot serve this run; name another folder in "
                    "data.cache_features, or remove that one");
}

}  // namespace zea::detail
