// SPDX-License-Identifier: Apache-2.0
#include "adapter_output.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/peft.hpp"
#include "io/safetensors.hpp"
#include "spec/adapters.hpp"
#include "spec/parameter_names.hpp"
#include "staged_directory.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

/// A number that PEFT reads as whole where it is.
Json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
  return value;
}

/// A matrix of an adapter, and what PEFT calls it.
struct Matrix {
  std::string name;
  TensorInfo in_file;
};

/// A parameter in the model that PEFT stands beside.
struct RunningName {
  std::string directory;  ///< of the adapters of that model, in the target's; empty: the target
  std::string name;       ///< as the running model has it
};

/// Returns the name that transformers' running model gives a parameter of an encoder called `root`.
std::string running_tower_name(const ModelSpec& model, const std::string& root,
                               const std::string& name) {
  const bool is_vit = model.param_index(root + "encoder.layer.0.intermediate.dense.weight") >= 0;
  return is_vit ? running_vit_name(name) : name;
}

/// Each part of a composed model has a directory of its own: the user has the parts, but no model
/// that holds them all.
RunningName running_name_of(const ModelSpec& model, const ParamSpec& param) {
  const std::string tower = "vision_tower.";
  if (model.family != "composed") {
    std::string name = param.name;
    if (name.starts_with(tower))
      name = tower + running_tower_name(model, tower, name.substr(tower.size()));
    return {"", running_parameter_name(model.family, name)};
  }
  const std::string root = param.module == kDecoder ? kDecoder + "." : param.module + ".encoder.";
  if (param.name.starts_with(root))
    return {param.module + "/", running_tower_name(model, root, param.name.substr(root.size()))};
  throw WeightsError("adapters of the projector of " + param.module +
                     " cannot be written alone: of a model put together of several it belongs to "
                     "none that PEFT could load them beside; without --adapter the merged model is "
                     "written");
}

/// The adapters of one model.
class PeftDirectory {
 public:
  PeftDirectory(const WeightsSource& source, const ModelSpec& model, const std::string& dtype)
      : source_(source),
        dtype_(dtype),
        config_(Json::parse(source.config_json(), nullptr, false)),
        model_(model) {}

  void add(const Adapter& adapter) {
    for (const int param : {adapter.a, adapter.b}) {
      const ParamSpec& spec = model_.params[param];
      const auto found = std::ranges::find(source_.tensors(), spec.name, &TensorInfo::name);
      if (found == source_.tensors().end())
        throw WeightsError(source_.describe() + ": has no " + spec.name);
      const DType dtype = dtype_.empty() ? found->dtype : dtype_from_name(dtype_);
      const std::string name = running_name_of(model_, spec).name;
      matrices_.push_back({spec.name, {kPeftPrefix + name, spec.tensor_shape(), dtype}});
    }
    const ParamSpec& base = model_.params[adapter.base];
    const std::string name = running_name_of(model_, base).name;
    linears_[name.substr(0, name.rfind(".weight"))] = &adapter;
    if (first_.is_null()) first_ = config_.at(kAdapters).at(base.module);
    is_in_out_ |= adapter.order == WeightOrder::InOut;
  }

  void write(const std::string& target, bool replaces) const {
    StagedDirectory directory(target, replaces);
    write_text_durably(directory.path() + "/" + kPeftConfig, config().dump(2) + "\n");
    std::vector<TensorInfo> tensors;
    for (const Matrix& matrix : matrices_) tensors.push_back(matrix.in_file);
    SafetensorsWriter file(directory.path() + "/" + kPeftWeights, tensors);
    std::vector<char> values;
    for (const auto& [name, tensor] : matrices_) {
      const int64_t elements = num_elements(tensor.shape);
      values.resize(static_cast<size_t>(elements) * element_bytes(tensor.dtype));
      source_.read(name, tensor.shape, whole(tensor.shape), tensor.dtype, values.data());
      file.write(tensor.name, 0, elements, values.data());
    }
    file.finish();
    directory.finish();
  }

 private:
  /// Times it PEFT's alpha is divided by the rank or its root, as the first module's was.
  double alpha_of(const Adapter& adapter, bool is_rslora) const {
    const auto rank = static_cast<double>(rank_of(adapter));
    const bool is_own =
        adapter.scale ==
        adapter_scale({.rank = rank_of(adapter), .alpha = adapter.alpha, .rslora = is_rslora});
    return is_own ? adapter.alpha : adapter.scale * (is_rslora ? std::sqrt(rank) : rank);
  }
  int64_t rank_of(const Adapter& adapter) const { return model_.params[adapter.a].shape[0]; }

  /// The first module's rank and alpha are the adapter's; others stand with the names of linears.
  /// Of rates of dropout, which change nothing of what is computed, PEFT has one: the largest.
  Json config() const {
    const bool is_rslora = first_.at("rslora");
    const auto alpha = first_.at("alpha").get<double>();
    Json targets = Json::array(), ranks = Json::object(), alphas = Json::object();
    double dropout = 0;
    for (const auto& [linear, adapter] : linears_) {
      targets.push_back(linear);
      if (const int64_t rank = rank_of(*adapter); rank != first_.at("rank")) ranks[linear] = rank;
      if (const double own = alpha_of(*adapter, is_rslora); own != alpha)
        alphas[linear] = number(own);
      dropout = std::max(dropout, adapter->dropout);
    }
    return {{"peft_type", "LORA"},
            {"task_type", nullptr},
            {"base_model_name_or_path", nullptr},
            {"r", first_.at("rank")},
            {"lora_alpha", number(alpha)},
            {"use_rslora", is_rslora},
            {"lora_dropout", dropout},
            {"bias", "none"},
            {"fan_in_fan_out", is_in_out_},
            {"inference_mode", true},
            {"target_modules", targets},
            {"rank_pattern", ranks},
            {"alpha_pattern", alphas}};
  }

  const WeightsSource& source_;
  const std::string dtype_;
  const Json config_;
  const ModelSpec& model_;
  Json first_;  ///< what is said of the adapters of the first module
  std::vector<Matrix> matrices_;
  std::map<std::string, const Adapter*> linears_;  ///< by name
  bool is_in_out_ = false;
};

}  // namespace

void write_peft_adapter(const WeightsSource& source, const std::string& target,
                        const std::string& dtype, bool replaces) {
  if (!has_adapters(source.config_json()))
    throw WeightsError(source.describe() + ": its model has no adapters (model.<module>.lora)");
  if (!target.ends_with('/'))
    throw DeckError(target + ": adapters go into a directory; end its name with '/'");
  const ModelSpec model = make_model_spec(source.config_json());
  std::map<std::string, PeftDirectory> directories;
  for (const UnitSpec& unit : model.units)
    for (const Adapter& adapter : unit.adapters) {
      const std::string directory = running_name_of(model, model.params[adapter.base]).directory;
      directories.try_emplace(directory, source, model, dtype).first->second.add(adapter);
    }
  if (directories.size() == 1 && directories.begin()->first.empty())
    return directories.begin()->second.write(target, replaces);
  StagedDirectory whole(target, replaces);
  for (const auto& [directory, adapters] : directories)
    adapters.write(whole.path() + "/" + directory, false);
  whole.finish();
}

}  // namespace zea
