// SPDX-License-Identifier: Apache-2.0
#include "io/peft.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <regex>

#include "core/error.hpp"
#include "io/model_files.hpp"
#include "io/open_source.hpp"
#include "io/safetensors.hpp"
#include "io/strict_json.hpp"
#include "spec/adapters.hpp"
#include "spec/parameter_names.hpp"

namespace zea {
namespace {

/// Whether the pattern `words` matches a linear's name or its last words. Patterns come from
/// strangers, so they are short, without counts and numbered groups, which std::regex expands or
/// nests without limit, and matching takes a time that grows with both lengths alone.
bool matches(const std::string& name, const std::string& words, const std::string& where) {
  constexpr size_t kMostWords = 256;
  const auto is_group_number = [](char before, char digit) {
    return before == '\\' && digit >= '0' && digit <= '9';
  };
  if (words.size() > kMostWords || words.find('{') != std::string::npos ||
      std::ranges::adjacent_find(words, is_group_number) != words.end())
    throw WeightsError(where + ": alpha_pattern has \"" + words.substr(0, kMostWords) +
                       "\"; allowed: up to " + std::to_string(kMostWords) +
                       " characters, no counts in braces, and no groups by number");
  try {
    const auto way = std::regex::ECMAScript | std::regex_constants::__polynomial;
    return std::regex_match(name, std::regex("(.*\\.)?(" + words + ")", way));
  } catch (const std::regex_error&) {
    throw WeightsError(where + ": alpha_pattern has \"" + words +
                       "\", which is no regular expression");
  }
}

}  // namespace

PeftConfig::PeftConfig(const std::string& text, std::string where) : where_(std::move(where)) {
  if (!parse_strict_json(text, where_).is_object())
    throw WeightsError(where_ + ": expected a JSON object");
  config_ = nlohmann::ordered_json::parse(text);
  check_kind();
}

LoraOptions PeftConfig::lora() const {
  constexpr int64_t kMostRank = 65536;  // as in decks
  LoraOptions lora;
  if (config_.contains("r")) {
    const auto& rank = config_["r"];
    if (!rank.is_number_integer() || rank < 1 || rank > kMostRank)
      refuse("r", "1 to " + std::to_string(kMostRank));
    lora.rank = rank;
  }
  lora.alpha = number("lora_alpha", 8);
  lora.dropout = number("lora_dropout", 0);
  if (!(*lora.dropout >= 0 && *lora.dropout < 1)) refuse("lora_dropout", "0 and more, below 1");
  if (config_.contains("use_rslora")) {
    if (!config_["use_rslora"].is_boolean()) refuse("use_rslora", "true or false");
    lora.rslora = config_["use_rslora"];
  }
  return lora;
}

double PeftConfig::alpha_of(const std::string& linear) const {
  const auto patterns = config_.find("alpha_pattern");
  if (patterns != config_.end() && patterns->is_object())
    for (const auto& [words, value] : patterns->items())
      if (value.is_number() && matches(linear, words, where_)) return value.get<double>();
  return number("lora_alpha", 8);
}

bool PeftConfig::targets_parameter(const std::string& name) const {
  const auto found = config_.find("target_parameters");
  if (found == config_.end() || !found->is_array()) return false;
  return std::ranges::any_of(*found, [&](const nlohmann::ordered_json& target) {
    return target.is_string() &&
           (name == target.get<std::string>() || name.ends_with("." + target.get<std::string>()));
  });
}

double PeftConfig::number(const char* key, double usual) const {
  if (!config_.contains(key)) return usual;
  if (!config_[key].is_number()) refuse(key, "a number");
  return config_[key].get<double>();
}

/// Refuses PEFT features that are not built, unless their keys have values that turn them off.
void PeftConfig::check_kind() const {
  if (!config_.contains("peft_type") || config_["peft_type"] != "LORA")
    refuse("peft_type", "\"LORA\"", false);
  if (config_.contains("bias") && config_["bias"] != "none") refuse("bias", "\"none\"", false);
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"})
    if (config_.contains(key) && config_[key] != false) refuse(key, "false", false);
  for (const char* key : {"modules_to_save", "layer_replication", "trainable_token_indices",
                          "alora_invocation_tokens", "use_bdlora", "arrow_config"})
    if (config_.contains(key) && !config_[key].is_null() && !config_[key].empty())
      refuse(key, "null", false);
  // With other initializations PEFT also changes the base weights, even when it loads an adapter.
  const nlohmann::json init = config_.value("init_lora_weights", nlohmann::json(true));
  if (!init.is_null() && !init.is_boolean() && init != "gaussian" && init != "eva" &&
      init != "orthogonal")
    refuse("init_lora_weights",
           "true, false, \"gaussian\", \"eva\", \"orthogonal\", as what PEFT writes of others with "
           "path_initial_model_for_weight_conversion",
           false);
}

void PeftConfig::refuse(const std::string& key, const std::string& allowed, bool is_built) const {
  const std::string found = config_.contains(key) ? config_[key].dump() : "nothing";
  throw WeightsError(where_ + ": " + key + " = " + found + (is_built ? "" : " is not built") +
                     "; allowed: " + allowed);
}

namespace {

/// How tensors end that PEFT writes where an embedding or the head is adapted.
constexpr const char* kOfVocabulary[] = {".base_layer.weight", ".lora_embedding_A",
                                         ".lora_embedding_B"};

/// `value` as the deck has it in a rule.
std::string rule_text(const std::string& linear, double value) {
  char text[32];
  return linear + " = " + std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

/// The model's name of a linear that its module, or the model that this came from, calls `running`.
std::string linear_name(const ModelSpec& model, const std::string& module,
                        const std::string& running) {
  const bool is_composed = model.family == "composed";
  if (!is_composed || module == kDecoder)
    return canonical_parameter_name(model, (is_composed ? kDecoder + "." : "") + running);
  const EncoderSpec& encoder = model.encoders.at(model.encoder_index(module));
  const bool is_audio = encoder.modality() == Modality::Audio;
  return module + ".encoder." + canonical_vit_name(tower_parameter_name(running, is_audio));
}

std::unique_ptr<WeightsSource> open_adapter_file(const std::string& directory) {
  const auto has = [&](const char* name) { return names_entry(directory + "/" + name); };
  const std::string found = directory + ": has no " + kPeftWeights;
  if (!names_entry(directory))
    throw WeightsError(directory + ": does not exist" + hub_advice(directory));
  if (!has(kPeftWeights) && has("adapter_model.bin"))
    throw WeightsError(found +
                       ", only a pickled adapter_model.bin; load it with PEFT and write it "
                       "with save_pretrained()");
  if (!has(kPeftWeights) && has("config.json"))
    throw WeightsError(found + "; it holds a model, which belongs in model.weights");
  return open_safetensors(directory + "/" + kPeftWeights);
}

/// The tensors of one module, under the model's names.
class PeftAdapter : public WeightsSource {
 public:
  PeftAdapter(const std::string& directory, const ModelSpec& model, const std::string& module,
              const std::set<std::string>& asked)
      : directory_(directory),
        asked_(asked),
        file_(open_adapter_file(directory)),
        config_(read_model_text(directory + "/" + kPeftConfig), directory + "/" + kPeftConfig),
        lora_(config_.lora()) {
    for (const TensorInfo& tensor : file_->tensors()) take(tensor, model, module);
    if (lora_.targets.empty()) throw WeightsError(directory + ": holds no adapters of " + module);
  }

  const LoraOptions& lora() const { return lora_; }

  std::string describe() const override { return directory_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return ""; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    const Matrix& matrix = matrices_.at(name);
    if (!matrix.stacks_experts)
      file_->read(matrix.name, shape, extent, dtype, target);
    else if (name.ends_with(kDown))
      read_stacked_down(matrix, shape, extent, dtype, static_cast<char*>(target));
    else
      read_stacked_up(matrix, shape, extent, dtype, static_cast<char*>(target));
  }

 private:
  static constexpr const char *kDown = ".lora_A.weight", *kUp = ".lora_B.weight";

  struct Matrix {
    std::string name;  ///< in the file
    bool stacks_experts = false;
  };

  void take(const TensorInfo& tensor, const ModelSpec& model, const std::string& module) {
    const std::string prefix = kPeftPrefix;
    const size_t end = std::min(tensor.name.rfind(kDown), tensor.name.rfind(kUp));
    if (tensor.name.starts_with(prefix))
      for (const char* ending : kOfVocabulary)
        if (tensor.name.ends_with(ending))
          refuse(tensor,
                 tensor.name.substr(prefix.size(), tensor.name.rfind(ending) - prefix.size()));
    if (!tensor.name.starts_with(prefix) || end == std::string::npos)
      throw WeightsError(directory_ + ": " + tensor.name +
                         " is no matrix of an adapter; these are called " + prefix +
                         "<linear>.lora_A.weight and .lora_B.weight");
    const std::string running = tensor.name.substr(prefix.size(), end - prefix.size());
    if (const std::string stack = running_stack(running); !stack.empty())
      return take_stack(tensor, model, module, stack);
    const std::string linear = linear_name(model, module, running);
    const int base = model.param_index(linear + ".weight");
    // Tied to the embeddings it has no name of its own.
    if (base < 0 && (running == "lm_head" || running.ends_with(".lm_head")))
      refuse(tensor, running);
    if (base < 0 && is_of_shared_keys(model, linear + ".weight")) return;  // without effect
    if (base < 0)
      throw WeightsError(directory_ + ": " + tensor.name + " adapts " + linear + ", which this " +
                         model.family + " model does not have");
    const std::string& owner = owner_of(model.params[base]);
    // Layers after those whose features are read have no effect, and neither have their adapters.
    if (owner != module || !model.params[base].used) return;
    if (!may_have_adapter(model, base)) refuse(tensor, running);
    const std::string name = linear + tensor.name.substr(end);
    tensors_.push_back({name, tensor.shape, tensor.dtype});
    matrices_.emplace(name, Matrix{tensor.name});
    if (!name.ends_with(kDown)) return;
    const std::string weight = running + ".weight";
    take_scale(config_.targets_parameter(weight) ? weight : running, of_all_experts(model, linear),
               tensor.shape.at(0));
  }

  const std::string& owner_of(const ParamSpec& base) const {
    if (!asked_.contains(base.module))
      throw WeightsError(directory_ + ": holds adapters of " + base.module +
                         ", too; name it in model." + base.module + ".lora.weights as well");
    return base.module;
  }

  /// Returns the running model's name of the stacked expert tensor that the adapter called
  /// `running` adapts; empty: it adapts a linear. PEFT wraps the module of these tensors once per
  /// tensor, gate_up_proj first, and names the wrapped module "base_layer".
  std::string running_stack(const std::string& running) const {
    const std::string wrapped = ".base_layer", experts = ".experts", up = ".gate_up_proj";
    if (running.ends_with(experts + wrapped))
      return running.substr(0, running.size() - wrapped.size()) + up;
    if (!running.ends_with(experts)) return "";
    const std::string inner = kPeftPrefix + running + wrapped + kDown;
    const bool is_outer = std::ranges::count(file_->tensors(), inner, &TensorInfo::name) > 0;
    return running + (!is_outer && config_.targets_parameter(running + up) ? up : ".down_proj");
  }

  /// PEFT's A is (experts * rank, in); its B is (out, rank * experts), with the expert as the
  /// fastest index. The model's A is (experts, rank, in), its B (experts, out, rank).
  void take_stack(const TensorInfo& tensor, const ModelSpec& model, const std::string& module,
                  const std::string& running) {
    const std::string stack = linear_name(model, module, running);
    const std::string experts = stack.substr(0, stack.rfind('.') + 1);
    const auto unit = std::ranges::find_if(model.units, [&](const UnitSpec& one) {
      return std::ranges::any_of(model.expert_params(one), [&](const std::vector<int>& params) {
        return model.params[params.front()].name.starts_with(experts);
      });
    });
    if (unit == model.units.end())
      throw WeightsError(directory_ + ": " + tensor.name + " adapts " + stack + ", which this " +
                         model.family + " model does not have");
    if (owner_of(model.params[unit->params.front()]) != module) return;
    const bool is_down = tensor.name.ends_with(kDown);
    const int64_t count = model.mlp(*unit).router->experts;
    if (tensor.shape.size() != 2 || tensor.shape[is_down ? 0 : 1] % count != 0)
      throw WeightsError(directory_ + ": " + tensor.name + " has the shape " +
                         shape_text(tensor.shape) + "; expected (" + std::to_string(count) +
                         " experts * rank, in) of lora_A, (out, rank * " + std::to_string(count) +
                         ") of lora_B");
    const int64_t rank = tensor.shape[is_down ? 0 : 1] / count;
    const Shape shape =
        is_down ? Shape{count, rank, tensor.shape[1]} : Shape{count, tensor.shape[0], rank};
    tensors_.push_back({stack + (is_down ? kDown : kUp), shape, tensor.dtype});
    matrices_.emplace(tensors_.back().name, Matrix{tensor.name, true});
    if (is_down) take_scale(running, stack, rank);
  }

  void read_stacked_down(const Matrix& matrix, const Shape& shape, const Extent& extent,
                         DType dtype, char* target) const {
    const auto& [at, length] = extent;
    const int64_t bytes = length[1] * length[2] * element_bytes(dtype);
    for (int64_t e = 0; e < length[0]; ++e)
      file_->read(matrix.name, {shape[0] * shape[1], shape[2]},
                  {{(at[0] + e) * shape[1] + at[1], at[2]}, {length[1], length[2]}}, dtype,
                  target + e * bytes);
  }
  void read_stacked_up(const Matrix& matrix, const Shape& shape, const Extent& extent, DType dtype,
                       char* target) const {
    const auto& [at, length] = extent;
    const int64_t columns = shape[0] * shape[2], bytes = element_bytes(dtype);
    std::vector<char> rows(static_cast<size_t>(length[1] * columns * bytes));
    file_->read(matrix.name, {shape[1], columns}, {{at[1], 0}, {length[1], columns}}, dtype,
                rows.data());
    for (int64_t e = 0; e < length[0]; ++e)
      for (int64_t o = 0; o < length[1]; ++o)
        for (int64_t r = 0; r < length[2]; ++r, target += bytes) {
          const int64_t column = (at[2] + r) * shape[0] + at[0] + e;
          std::memcpy(target, rows.data() + (o * columns + column) * bytes,
                      static_cast<size_t>(bytes));
        }
  }

  /// Returns a linear's name, with * for an expert's number, since the experts of a layer have the
  /// same rank.
  static std::string of_all_experts(const ModelSpec& model, const std::string& linear) {
    if (!model.has_experts()) return linear;
    const std::string words = ".experts.";
    const size_t begin = linear.rfind(words);
    if (begin == std::string::npos) return linear;
    const size_t number = begin + words.size();
    return linear.substr(0, number) + "*" + linear.substr(linear.find('.', number));
  }

  [[noreturn]] void refuse(const TensorInfo& tensor, const std::string& running) const {
    throw WeightsError(directory_ + ": " + tensor.name + " is an adapter of " + running +
                       ", which zea does not build; allowed are linears, but not the vocabulary or "
                       "convolutions: train it without " +
                       running.substr(running.rfind('.') + 1) + " in target_modules");
  }

  /// `linear`: the model's name, with * for the numbers of experts. The first expert decides rank
  /// and alpha; loading refuses matrices of other ranks.
  void take_scale(const std::string& running, const std::string& linear, int64_t rank) {
    if (!known_.insert(linear).second) return;
    const double alpha = config_.alpha_of(running);
    if (rank != lora_.rank)
      lora_.rank_pattern.push_back(rule_text(linear, static_cast<double>(rank)));
    if (alpha != lora_.alpha) lora_.alpha_pattern.push_back(rule_text(linear, alpha));
    lora_.targets.push_back(linear);
  }

  std::string directory_;
  std::set<std::string> asked_;
  std::unique_ptr<WeightsSource> file_;
  PeftConfig config_;
  LoraOptions lora_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, Matrix> matrices_;  ///< by the model's names
  std::set<std::string> known_;             ///< linears whose ranks are known
};

}  // namespace

NewAdapters open_peft_adapter(const std::string& directory, const ModelSpec& model,
                              const std::string& module, const std::set<std::string>& asked) {
  auto adapter = std::make_shared<PeftAdapter>(directory, model, module, asked);
  return {module, adapter->lora(), adapter};
}

}  // namespace zea
