// SPDX-License-Identifier: Apache-2.0
#include "spec/quantization.hpp"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "spec/config_reader.hpp"

namespace zea {
namespace {

using detail::ConfigReader;

constexpr const char *kQuantization = "quantization_config", *kText = "text_config";

Quantization read_mxfp4(const ConfigReader& config) {
  config.ignore_keys({"dequantize", "modules_to_not_convert"});
  return kMxfp4;
}

/// Lists of unquantized modules are ignored: the data types in the files show them.
Quantization read_fp8(const ConfigReader& config) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const char *key = "weight_block_size", *scales = "scale_fmt";
  config.require_text("activation_scheme", "dynamic");
  config.require_text("fmt", "e4m3");
  config.ignore_keys({"dequantize", "ignored_layers", "modules_to_not_convert"});
  const std::string type = config.text(scales, "float");
  if (type != "float" && type != "ue8m0") config.refuse(scales, type, "float, ue8m0");
  Quantization found = kFp8;
  if (config.has(key)) {
    const std::vector<int64_t> sides = config.integers(key, 0);
    const bool is_block = sides.size() == 2 && std::ranges::min(sides) > 0;
    if (!is_block || std::ranges::max(sides) > kMost)
      config.refuse(key, config.dump(key), "the rows and columns of a block, each 1 to 2^30");
    found.rows = sides[0];
    found.columns = sides[1];
  } else if (config.is_null(key)) {
    config.refuse(key, "null",
                  "the rows and columns of a block (per-tensor scales are not supported)");
  }
  return found;
}

/// Throws unless the key is absent, null, or an object or list without members.
void require_none(const ConfigReader& config, const std::vector<const char*>& keys) {
  for (const char* key : keys)
    if (const std::string found = config.dump(key);
        config.has(key) && found != "{}" && found != "[]")
      config.refuse(key, found, "null");
}

/// Returns the group size of the only group of a "pack-quantized" model (compressed-tensors).
int64_t read_group_size(const ConfigReader& weights) {
  constexpr int64_t kBits = 4;
  const char *bits = "num_bits", *strategy = "strategy", *order = "actorder";
  const int64_t found = weights.integer(bits, 8);
  if (found != kBits) weights.refuse(bits, std::to_string(found), std::to_string(kBits));
  weights.require_text("type", "int");
  weights.require_boolean("symmetric", true);
  weights.require_boolean("dynamic", false);
  const bool has_size = weights.has("group_size");
  const std::string kind = weights.text(strategy, has_size ? "group" : "tensor");
  if (kind != "group") weights.refuse(strategy, kind, "group");
  const std::string ordered = weights.dump(order);  // "weight", "static": calibration only
  const bool keeps_order = !weights.has(order) || ordered == "false" || ordered == "\"weight\"" ||
                           ordered == "\"static\"";
  if (!keeps_order) weights.refuse(order, ordered, "null, \"weight\"");
  require_none(weights, {"block_structure"});
  weights.ignore_keys({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  return weights.positive("group_size", 0);
}

/// Lists of quantized or ignored modules are not needed: the tensor names in the files show them.
Quantization read_compressed_tensors(const ConfigReader& config) {
  const char *form = "format", *all = "config_groups", *packed = "pack-quantized";
  if (const std::string found = config.text(form, "nothing"); found != packed)
    config.refuse(form, found, packed);
  config.require_text("quantization_status", "compressed");
  require_none(config, {"kv_cache_scheme", "sparsity_config", "transform_config"});
  config.ignore_keys(
      {"dequantize", "global_compression_ratio", "ignore", "run_compressed", "version"});
  const ConfigReader groups = config.object(all);
  const std::vector<std::string> names = groups.keys();
  if (names.size() != 1) config.refuse(all, std::to_string(names.size()) + " groups", "one group");
  const ConfigReader group = groups.object(names.front().c_str());
  group.require_text(form, packed);
  require_none(group, {"input_activations", "output_activations"});
  group.ignore_keys({"targets"});
  return {QuantizedFormat::Int4, 1, read_group_size(group.object("weights"))};
}

struct Method {
  const char* name;
  Quantization (*read)(const ConfigReader&);
};
constexpr std::array<Method, 3> kMethods{
    {{"compressed-tensors", read_compressed_tensors}, {"fp8", read_fp8}, {"mxfp4", read_mxfp4}}};

/// The object of a config, or of a part of it; null: there is none.
const nlohmann::json* find_quantization(const nlohmann::json& config) {
  const auto found = config.find(kQuantization);
  return found != config.end() && found->is_object() && !found->empty() ? &*found : nullptr;
}

}  // namespace

std::optional<Quantization> quantization_of(const nlohmann::json& config) {
  if (!config.is_object()) return std::nullopt;
  const auto text = config.find(kText);
  const bool has_text = text != config.end() && text->is_object();
  const nlohmann::json* of_model = find_quantization(config);
  const nlohmann::json* of_text = has_text ? find_quantization(*text) : nullptr;
  const std::string outer = std::string("config.") + kQuantization;
  const std::string inner = std::string("config.") + kText + "." + kQuantization;
  if (of_model && of_text && *of_model != *of_text)
    throw ConfigError(inner, " differs from " + outer + "; allowed: one of them, or equal ones");
  const nlohmann::json* said = of_model ? of_model : of_text;
  if (!said) return std::nullopt;
  const auto method = std::ranges::find_if(kMethods, [&](const Method& known) {
    return said->value("quant_method", nlohmann::json()) == known.name;
  });
  if (method == kMethods.end()) return std::nullopt;
  const ConfigReader reader(*said, of_model ? outer : inner);
  reader.ignore_keys({"quant_method"});
  const Quantization found = method->read(reader);
  reader.refuse_unknown();
  return found;
}

std::string quantized_methods() {
  std::string list;
  for (const Method& method : kMethods) list += std::string(list.empty() ? "" : ", ") + method.name;
  return list;
}

nlohmann::json without_quantization(nlohmann::json config) {
  config.erase(kQuantization);
  if (config.contains(kText) && config[kText].is_object()) config[kText].erase(kQuantization);
  return config;
}

}  // namespace zea
