// SPDX-License-Identifier: Apache-2.0
#include "adapter_output.hpp"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "composed_parts.hpp"
#include "staged_directory.hpp"
#include "zea/core/error.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/peft_adapter.hpp"
#include "zea/io/safetensors.hpp"
#include "zea/plan/model/adapters.hpp"
#include "zea/plan/model/parameter_names.hpp"

namespace zea {
namespace {

using Json = nlohmann::ordered_json;

/// A matrix of an adapter, and what PEFT calls it.
struct Matrix {
  std::string name;
  TensorInfo in_file;
};

class PeftDirectory {
 public:
  PeftDirectory(const WeightsSource& source, const std::string& dtype)
      : source_(source),
        dtype_(dtype),
        config_(Json::parse(source.config_json(), nullptr, false)),
        model_(make_model_spec(source.config_json())) {
    for (const UnitSpec& unit : model_.units)
      for (const Adapter& adapter : unit.adapters) add(adapter);
    const Json encoder = config_.value("vision_config", Json::object());
    if (encoder.value("model_type", "") == "vit" && config_.at(kAdapters).contains("vision"))
      throw WeightsError(source.describe() +
                         ": adapters of a ViT encoder, whose linears have other names in PEFT than "
                         "in files, are not written yet; without --adapter the merged model is");
  }

  void write(const std::string& target) const {
    StagedDirectory directory(target);
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
  /// How the adapters of a module are scaled.
  const Json& module_config(const std::string& module) const {
    return config_.at(kAdapters).at(module);
  }

  void add(const Adapter& adapter) {
    for (const int param : {adapter.a, adapter.b}) {
      const ParamSpec& spec = model_.params[param];
      const auto found = std::ranges::find(source_.tensors(), spec.name, &TensorInfo::name);
      if (found == source_.tensors().end())
        throw WeightsError(source_.describe() + ": has no " + spec.name);
      const DType dtype = dtype_.empty() ? found->dtype : dtype_from_name(dtype_);
      matrices_.push_back({spec.name,
                           {kPeftPrefix + running_parameter_name(model_.family, spec.name),
                            spec.tensor_shape(), dtype}});
    }
    const ParamSpec& base = model_.params[adapter.base];
    const std::string name = running_parameter_name(model_.family, base.name);
    linears_[name.substr(0, name.rfind(".weight"))] = base.module;
    is_in_out_ |= adapter.order == WeightOrder::InOut;
  }

  /// The first module's rank and alpha are the adapter's; those of others stand with their names.
  Json config() const {
    const Json& first = config_.at(kAdapters).begin().value();
    Json targets = Json::array(), ranks = Json::object(), alphas = Json::object();
    for (const auto& [linear, module] : linears_) {
      const Json& own = module_config(module);
      targets.push_back(linear);
      if (own.at("rank") != first.at("rank")) ranks[linear] = own.at("rank");
      if (own.at("alpha") != first.at("alpha")) alphas[linear] = own.at("alpha");
      if (own.at("rslora") != first.at("rslora"))
        throw WeightsError(source_.describe() +
                           ": its modules differ in rslora, which PEFT has once for all; export "
                           "the merged model, without --adapter");
    }
    return {{"peft_type", "LORA"},
            {"task_type", nullptr},
            {"base_model_name_or_path", nullptr},
            {"r", first.at("rank")},
            {"lora_alpha", first.at("alpha")},
            {"use_rslora", first.at("rslora")},
            {"lora_dropout", 0.0},
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
  const ModelSpec model_;
  std::vector<Matrix> matrices_;
  std::map<std::string, std::string> linears_;  ///< modules, by names
  bool is_in_out_ = false;
};

}  // namespace

void write_peft_adapter(const WeightsSource& source, const std::string& target,
                        const std::string& dtype) {
  if (!has_adapters(source.config_json()))
    throw WeightsError(source.describe() + ": its model has no adapters (model.<module>.lora)");
  if (is_composed(source))
    throw WeightsError(source.describe() +
                       ": --adapter of a model put together of several is not built yet; without "
                       "it the merged model is written");
  if (!target.ends_with('/'))
    throw DeckError(target + ": adapters go into a directory; end its name with '/'");
  PeftDirectory(source, dtype).write(target);
}

}  // namespace zea
