// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/model_files.hpp"
#include "io/tensor_request.hpp"
#include "spec/parameter_names.hpp"
#include "spec/quantization.hpp"

namespace zea {
namespace {

constexpr const char* kHead = "lm_head.weight";

/// The last words of names in quantized files: of GPTQ and AWQ, bitsandbytes, FP8.
constexpr std::array kOfQuantized{"qweight", "qzeros",       "absmax",           "SCB",
                                  "g_idx",   "weight_scale", "weight_scale_inv", "weight_packed"};

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string lines(const std::string& title, const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += "\n  " + title + item;
  return text;
}

/// The tensors that may be parameters, by the model's spelling of their names.
std::map<std::string, TensorInfo> by_model_name(const ModelSpec& model,
                                                const WeightsSource& source) {
  std::map<std::string, TensorInfo> tensors;
  for (const TensorInfo& tensor : source.tensors()) {
    // Parts that are carried along keep their buffers.
    if (is_computed_buffer(tensor.name) && model.param_index(tensor.name) < 0) continue;
    const std::string name = canonical_parameter_name(model, tensor.name);
    // A tied head is the embedding: files may carry it, models do not have it.
    if (model.decoder.tied_embeddings && name.ends_with(kHead)) continue;
    const auto [place, is_new] = tensors.emplace(name, tensor);
    if (!is_new)
      throw WeightsError(source.describe() + ": \"" + place->second.name + "\" and \"" +
                         tensor.name + "\" are both called \"" + name + "\"");
  }
  return tensors;
}

/// Whether a tensor is carried along without use: it belongs to multi-token prediction (a separate
/// head, or layers after the last one), to the unused keys of a layer with shared keys, or to the
/// talker and vocoder of Qwen-Omni.
bool is_carried(const ModelSpec& model, const std::string& name) {
  if (is_of_shared_keys(model, name)) return true;
  if (model.family == "qwen2_5_omni" || model.family == "qwen3_omni_moe")
    return name.starts_with("talker.") || name.starts_with("token2wav.") ||
           name.starts_with("code2wav.");
  struct Layers {
    const char *family, *root;
  };
  constexpr const char* kOfComposites = "model.language_model.layers.";
  constexpr std::array kLayers{Layers{"deepseek_v3", "model.layers."},
                               Layers{"glm46v", kOfComposites}, Layers{"glm4_moe", "model.layers."},
                               Layers{"glm4v_moe", kOfComposites}};
  const auto of = std::ranges::find(kLayers, model.family, &Layers::family);
  if (of == kLayers.end() || !name.starts_with(of->root)) return name.starts_with("mtp.");
  const std::string number = name.substr(std::strlen(of->root));
  return std::strtoll(number.c_str(), nullptr, 10) >= model.decoder.layers;
}

/// Returns the key in kExpertStacks of a mixture.
std::string stack_of(const MlpSpec& mixture) {
  for (const auto& [name, stack] : kExpertStacks)
    if (mixture.stack == stack) return name;
  throw InternalError("an order of experts that has no name");
}

/// Returns the key in kExpertStacks of the experts in the files, if it is not the model's own; none
/// also if no tensor shows it.
std::optional<std::string> other_stack(const ModelSpec& model, const WeightsSource& source) {
  const std::vector<MlpSpec>& mlps = model.decoder.block.mlps;
  const auto mixture =
      std::ranges::find_if(mlps, [](const MlpSpec& mlp) { return mlp.router.has_value(); });
  if (mixture == mlps.end()) return std::nullopt;
  const auto unless_own = [own = stack_of(*mixture)](const char* found) {
    return found == own ? std::nullopt : std::optional<std::string>(found);
  };
  const int64_t hidden = model.decoder.block.hidden, inner = mixture->intermediate;
  for (const TensorInfo& tensor : source.tensors()) {
    constexpr std::string_view kPart = ".experts.";
    const size_t place = tensor.name.rfind(kPart);
    if (place == std::string::npos || is_carried(model, tensor.name)) continue;
    const std::string part = tensor.name.substr(place + kPart.size());
    if (part.find_first_of("0123456789") == 0) return unless_own("split");
    const bool is_up = part == "gate_up_proj";
    const int64_t out = is_up ? 2 * inner : hidden, in = is_up ? hidden : inner;
    if ((!is_up && part != "down_proj") || out == in || tensor.shape.size() != 3) continue;
    if (tensor.shape[1] == out && tensor.shape[2] == in) return unless_own("out_in");
    if (tensor.shape[1] == in && tensor.shape[2] == out) return unless_own("in_out");
  }
  return std::nullopt;
}

}  // namespace

std::string with_weights_files(const std::string& config_json, const ModelSpec& model,
                               const WeightsSource& source) {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  // A weights file has canonical names; its config says how the original files spelled them.
  const auto own = nlohmann::ordered_json::parse(source.config_json(), nullptr, false);
  if (own.is_object() && own.contains(kWeightsFiles) && own[kWeightsFiles].contains("names"))
    found["names"] = own[kWeightsFiles]["names"];
  for (const TensorInfo& tensor : source.tensors())
    if (is_carried(model, tensor.name)) found["carried"][tensor.name] = tensor.shape;
  for (const TensorInfo& tensor : source.tensors())
    if (const std::string names = spelling_of(model.family, tensor.name); !names.empty())
      found["names"] = names;
  if (const auto experts = other_stack(model, source)) found[kExperts] = *experts;
  if (found.empty()) return config_json;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(config_json);
  config[kWeightsFiles].update(found);
  return config.dump();
}

namespace {

/// Why a tensor cannot be the parameter; empty when it can.
std::string fault_of(const ParamSpec& param, const TensorInfo& tensor) {
  if (tensor.shape != param.tensor_shape())
    return "wrong shape: " + tensor.name + " is " + shape_text(tensor.shape) +
           "; the model wants " + shape_text(param.tensor_shape());
  if (!is_floating(tensor.dtype))
    return "wrong type: " + tensor.name + " is " + dtype_name(tensor.dtype) +
           "; allowed: floating types";
  return "";
}

}  // namespace

std::string TensorMatch::faults() const {
  return lines("missing: ", missing) + lines("", wrong) + lines("unexpected: ", unexpected);
}

bool is_of_shared_keys(const ModelSpec& model, const std::string& name) {
  constexpr std::array kParts{".k_proj.", ".v_proj.", ".k_norm."};
  const auto part = std::ranges::find_if(
      kParts, [&](const char* each) { return name.find(each) != std::string::npos; });
  if (part == kParts.end()) return false;
  const std::string queries = name.substr(0, name.find(*part)) + ".q_proj.weight";
  const auto lacks_it = [&](const UnitSpec& unit) {
    return !unit.makes_keys() && model.param_index(name) < 0 &&
           model.params[model.params_of(unit, "qkv.weight").front()].name == queries;
  };
  return std::ranges::any_of(model.units, lacks_it);
}

std::string load_module(const ModelSpec& model, int param) {
  for (const UnitSpec& unit : model.units)
    for (const std::string& role : unit.roles)
      if (unit.is_of_projector(role) && std::ranges::count(model.params_of(unit, role), param) > 0)
        return "projector";
  return model.params[static_cast<size_t>(param)].module;
}

TensorMatch match_tensors(const ModelSpec& model, const WeightsSource& source,
                          const std::optional<std::vector<std::string>>& parts) {
  TensorMatch match;
  std::map<std::string, TensorInfo> tensors = by_model_name(model, source);
  for (size_t p = 0; p < model.params.size(); ++p) {
    const ParamSpec& param = model.params[p];
    if (!param.begins_tensor()) continue;
    const auto tensor = tensors.extract(param.name);
    if (parts && !contains(*parts, load_module(model, static_cast<int>(p)))) continue;
    if (tensor.empty()) {
      match.missing.push_back(param.name + " " + shape_text(param.tensor_shape()));
      continue;
    }
    const std::string fault = fault_of(param, tensor.mapped());
    if (fault.empty())
      match.found.emplace(param.name, tensor.mapped());
    else
      match.wrong.push_back(fault);
  }
  for (const auto& [name, tensor] : tensors)
    match.unexpected.push_back(tensor.name + " " + shape_text(tensor.shape));
  return match;
}

void check_head_that_trains(const ModelSpec& model, const WeightsSource& source) {
  const auto head = std::ranges::find(model.units, true, &UnitSpec::is_mtp);
  if (head != model.units.end() &&
      std::ranges::count(source.tensors(), model.params[head->params.back()].name,
                         &TensorInfo::name) == 0)
    throw WeightsError(source.describe() +
                       ": has no head of multi-token prediction (mtp.*), which model." + kDecoder +
                       ".mtp_loss_coef trains; use files that have one, or leave it out");
}

void check_match(const TensorMatch& match, const ModelSpec& model, const WeightsSource& source) {
  const std::string faults = match.faults();
  if (faults.empty()) return;
  const bool is_quantized = std::ranges::any_of(source.tensors(), [](const TensorInfo& tensor) {
    const std::string last = tensor.name.substr(tensor.name.rfind('.') + 1);
    return std::ranges::count(kOfQuantized, last) > 0;
  });
  throw WeightsError(source.describe() + ": its tensors are not those of this " + model.family +
                     " model; " +
                     (is_quantized ? std::string("they are quantized: ") + kDequantizeAdvice + ":"
                                   : "use weights that were made from the same config.json, or "
                                     "model.strict = false to start with what fits:") +
                     faults);
}

const std::string& embedding_of(const ModelSpec& model) {
  const auto unit = std::ranges::find(model.units, UnitKind::TokenEmbed, &UnitSpec::kind);
  return model.params[static_cast<size_t>(unit->params.front())].name;
}

void check_tied_head(const WeightsSource& source, const TensorInfo& embedding) {
  constexpr int64_t kRows = 64;
  const auto head = std::ranges::find_if(
      source.tensors(), [](const TensorInfo& tensor) { return tensor.name.ends_with(kHead); });
  if (head == source.tensors().end()) return;
  const DType narrow = element_bytes(head->dtype) < element_bytes(embedding.dtype)
                           ? head->dtype
                           : embedding.dtype;  // a copy may have been rounded
  const auto first_rows = [&](const TensorInfo& tensor) {
    const Extent rows{{0, 0}, {std::min(tensor.shape[0], kRows), tensor.shape[1]}};
    std::vector<char> values(static_cast<size_t>(rows.elements()) * element_bytes(narrow));
    source.read(tensor.name, tensor.shape, rows, narrow, values.data());
    return values;
  };
  if (head->shape == embedding.shape && first_rows(*head) == first_rows(embedding)) return;
  throw WeightsError(source.describe() + ": " + head->name + " differs from " + embedding.name +
                     ", to which its config.json ties it; set tie_word_embeddings = false there to "
                     "keep it, or remove it from the file");
}

ModelSource::ModelSource(std::unique_ptr<WeightsSource> source, const std::string& config_json,
                         const LoadOptions& options)
    : source_(std::move(source)),
      config_(config_json.empty() && source_ ? source_->config_json() : config_json),
      config_path_(options.config_path) {
  if (config_.empty())
    throw WeightsError(describe() + ": has no config.json; name the model's in model.config");
  model_ = model_spec_of(*this);
  if (source_ && source_->has_weights()) {
    if (std::string known = with_weights_files(config_, model_, *source_); known != config_) {
      config_ = std::move(known);
      model_ = model_spec_of(*this);
    }
    load_matching(options);
  }
  if (options.adapters) add_adapters(options.adapters(model_));
  init_missing(options.seed);
}

void ModelSource::load_matching(const LoadOptions& options) {
  TensorMatch match = match_tensors(model_, *source_, options.modules);
  if (options.strict) check_match(match, model_, *source_);
  const auto embedding = match.found.find(embedding_of(model_));
  if (model_.decoder.tied_embeddings && embedding != match.found.end())
    check_tied_head(*source_, embedding->second);
  note_ = match.faults();
  loaded_ = std::move(match.found);
  if (loaded_.empty() && options.modules != std::vector<std::string>{})
    throw WeightsError(describe() + ": none of its tensors is one of this " + model_.family +
                       " model:" + note_);
}

void ModelSource::add_adapters(const std::vector<NewAdapters>& all) {
  for (const NewAdapters& one : all) {
    config_ = with_adapters(config_, one.module, one.lora);
    if (!one.source) continue;
    for (const TensorInfo& tensor : one.source->tensors())
      adapters_.emplace(tensor.name, one.source);
  }
  if (!all.empty()) model_ = model_spec_of(*this);
  for (const UnitSpec& unit : model_.units)
    for (const Adapter& adapter : unit.adapters)
      for (const AdapterParams& params : params_of_adapter(model_, unit, adapter))
        for (const int param : {params.a, params.b}) check_adapter(model_.params[param], all);
}

/// Whoever gives adapters of a module gives all of them.
void ModelSource::check_adapter(const ParamSpec& param, const std::vector<NewAdapters>& all) const {
  const auto of_module = std::ranges::find(all, param.module, &NewAdapters::module);
  if (of_module == all.end() || !of_module->source) return;
  const WeightsSource& source = *of_module->source;
  const auto found = std::ranges::find(source.tensors(), param.name, &TensorInfo::name);
  if (found == source.tensors().end())
    throw WeightsError(source.describe() + ": has no " + param.name);
  const std::string fault = fault_of(param, *found);
  if (!fault.empty()) throw WeightsError(source.describe() + ": " + fault);
}

void ModelSource::init_missing(uint64_t seed) {
  for (const ParamSpec& param : model_.params) {
    if (!param.begins_tensor()) continue;
    const auto entry = loaded_.find(param.name);
    const DType dtype = entry == loaded_.end() ? DType::Float64 : entry->second.dtype;
    tensors_.push_back({param.name, param.tensor_shape(), dtype});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const size_t drawn = tensors_.size() - loaded_.size();
  if (drawn > 0) drawn_ = make_initial_weights(config_, seed);
  if (source_ && !source_->has_weights()) return;
  if (drawn > 0 || !note_.empty())
    note_ = describe() + ": " + std::to_string(loaded_.size()) + " of " +
            std::to_string(tensors_.size()) + " parameters loaded, " + std::to_string(drawn) +
            " are initial values of seed " + std::to_string(seed) + note_;
}

std::string ModelSource::note() const {
  const std::string of_source = source_ ? source_->note() : "";
  return of_source + (of_source.empty() || note_.empty() ? "" : "\n") + note_;
}

std::string ModelSource::config_file(const std::string& key) const {
  if (!config_path_.empty()) return file_of_config_key(config_path_, key);
  return source_ ? source_->config_file(key) : describe();
}

std::string ModelSource::describe() const {
  return source_ ? source_->describe() : "no weights";
}

void ModelSource::read(const std::string& name, const Shape& shape, const Extent& extent,
                       DType dtype, void* target) const {
  const auto loaded = loaded_.find(name);
  if (loaded != loaded_.end())
    return source_->read(loaded->second.name, shape, extent, dtype, target);
  find_tensor(tensors_, name, describe());
  const auto adapter = adapters_.find(name);
  if (adapter != adapters_.end()) return adapter->second->read(name, shape, extent, dtype, target);
  drawn_->read(name, shape, extent, dtype, target);
}

std::vector<std::string> ModelSource::companions() const {
  return source_ ? source_->companions() : std::vector<std::string>{};
}

std::string ModelSource::companion(const std::string& name) const {
  return source_ ? source_->companion(name) : WeightsSource::companion(name);
}

}  // namespace zea
