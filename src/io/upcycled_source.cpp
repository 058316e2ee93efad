// SPDX-License-Identifier: Apache-2.0
#include "io/upcycled_source.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "io/model_source.hpp"
#include "io/strict_json.hpp"

namespace zea {
namespace {

using Json = nlohmann::json;

/// Where a family of mixtures has its experts, and which dense linears they are copies of.
struct MixtureFamily {
  const char *model_type, *architecture;
  const char* experts_key;
  const char *router, *experts;  ///< in the names of a block's tensors
  std::map<std::string, std::string> linears;
};

const MixtureFamily kMixtral{"mixtral",
                             "MixtralForCausalLM",
                             "num_local_experts",
                             ".block_sparse_moe.gate.",
                             ".block_sparse_moe.experts.",
                             {{"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}}};
const MixtureFamily kQwen3Moe{
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    "num_experts",
    ".mlp.gate.",
    ".mlp.experts.",
    {{"gate_proj", "gate_proj"}, {"up_proj", "up_proj"}, {"down_proj", "down_proj"}}};

/// Families that combine an encoder with any supported language model.
constexpr std::array kComposites{"internvl", "llava", "llava_next", "llava_onevision"};

/// Returns the config of the language model in `config`, which may be a composite's.
Json& text_of(Json& config, const std::string& where) {
  const std::string type = json_text(config, "model_type", where);
  if (std::ranges::count(kComposites, type) == 0) return config;
  json_member(config, "text_config", where);
  return config["text_config"];
}

const MixtureFamily& family_for(const std::string& type, const std::string& where) {
  if (type == "llama" || type == "mistral") return kMixtral;
  if (type == "qwen3") return kQwen3Moe;
  throw WeightsError(where + ": a model of type \"" + type +
                     "\" has no mixture of experts with its blocks; upcycling takes llama, mistral "
                     "and qwen3, alone or as the text_config of " +
                     join(kComposites));
}

/// Throws if the dense model has biases that the mixture does not support.
void check_biases(Json& config, bool has_attention_bias, const std::string& where) {
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (has_attention_bias && key == std::string("attention_bias")) continue;
    if (config.contains(key) && config[key] != false)
      throw WeightsError(where + ": " + key + " = " + config[key].dump() +
                         ", and mixtures of experts have no such biases; upcycle a model without");
    config.erase(key);
  }
}

/// Writes the dense family's defaults of keys that the config omits: those of mixtures differ.
void write_defaults(Json& config, const std::string& type) {
  Json defaults{{"hidden_size", 4096},
                {"num_attention_heads", 32},
                {"num_hidden_layers", 32},
                {"rms_norm_eps", 1e-6}};
  if (!config.value("rope_parameters", Json()).contains("rope_theta"))
    defaults["rope_theta"] = 10000.0;
  if (type == "llama") {
    defaults["intermediate_size"] = 11008;
    defaults["max_position_embeddings"] = 2048;
    defaults["num_key_value_heads"] = nullptr;
  } else if (type == "mistral") {
    defaults["sliding_window"] = 4096;
  } else {
    defaults["intermediate_size"] = 22016;
    defaults["num_key_value_heads"] = 32;
    defaults["head_dim"] = 128;
  }
  defaults.update(config);
  config = std::move(defaults);
  if (config.contains("num_key_value_heads") && config["num_key_value_heads"].is_null())
    config["num_key_value_heads"] = config["num_attention_heads"];
}

std::string config_of(Json whole, const MixtureFamily& family, const Upcycling& upcycling,
                      const std::string& where) {
  Json& config = text_of(whole, where);
  const bool is_qwen = &family == &kQwen3Moe;
  check_biases(config, is_qwen, where);
  write_defaults(config, config["model_type"]);
  config["model_type"] = family.model_type;
  config["architectures"] = {family.architecture};
  config[family.experts_key] = upcycling.experts;
  config["num_experts_per_tok"] = upcycling.chosen;
  if (is_qwen) {
    config["moe_intermediate_size"] = json_member(config, "intermediate_size", where);
    config["norm_topk_prob"] = true;
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = Json::array();
    for (const Json& type : config.value("layer_types", Json::array()))
      if (type != "full_attention")
        throw WeightsError(where + ": layer_types has " + type.dump() +
                           ", and Qwen3-MoE has windows in all layers or in none; upcycling takes "
                           "full_attention alone");
    config.erase("layer_types");
  }
  return whole.dump();
}

class UpcycledSource : public SourceOver {
 public:
  UpcycledSource(std::unique_ptr<WeightsSource> dense, const Upcycling& upcycling)
      : SourceOver(*dense), dense_(std::move(dense)) {
    const std::string where = dense_->describe();
    Json config = parse_strict_json(dense_->config_json(), where);
    const MixtureFamily& family =
        family_for(json_text(text_of(config, where), "model_type", where), where);
    config_ = config_of(std::move(config), family, upcycling, where);
    routers_ = make_initial_weights(config_, upcycling.seed);
    for (const TensorInfo& tensor : routers_->tensors()) {
      const bool is_router = tensor.name.find(family.router) != std::string::npos;
      const std::string from = is_router ? tensor.name : dense_name(tensor.name, family);
      const TensorInfo& found = find_tensor(is_router ? *routers_ : *dense_, from);
      origins_[tensor.name] = {is_router ? routers_.get() : dense_.get(), from};
      tensors_.push_back({tensor.name, tensor.shape, is_router ? dtype_of_dense() : found.dtype});
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return config_; }

  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    find_tensor(*this, name);
    const auto& [source, from] = origins_.at(name);
    source->read(from, shape, extent, dtype, target);
  }

 private:
  DType dtype_of_dense() const { return dense_->tensors().front().dtype; }

  /// "model.layers.3.mlp.up_proj.weight" for a linear of any expert; other tensors keep their
  /// names.
  static std::string dense_name(const std::string& name, const MixtureFamily& family) {
    const size_t begin = name.find(family.experts);
    if (begin == std::string::npos) return name;
    const size_t linear = name.find('.', begin + std::string(family.experts).size()) + 1;
    const size_t end = name.find('.', linear);
    return name.substr(0, begin) + ".mlp." + family.linears.at(name.substr(linear, end - linear)) +
           name.substr(end);
  }

  std::unique_ptr<WeightsSource> dense_, routers_;
  std::string config_;
  std::map<std::string, std::pair<const WeightsSource*, std::string>> origins_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<WeightsSource> upcycle(std::unique_ptr<WeightsSource> dense,
                                       const Upcycling& upcycling) {
  return std::make_unique<UpcycledSource>(std::move(dense), upcycling);
}

}  // namespace zea
