// SPDX-License-Identifier: Apache-2.0
#include "outputs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/peft.hpp"
#include "io/safetensors.hpp"
#include "spec/adapters.hpp"
#include "spec/parameter_names.hpp"

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
  Shape shape;  ///< in the model; in PEFT's file it has two dims
};

/// Reorders B from the model's (experts, out, rank) to PEFT's (out, rank, experts).
std::vector<char> in_order_of_peft(const std::vector<char>& values, const Shape& shape,
                                   size_t bytes) {
  std::vector<char> ordered(values.size());
  const char* source = values.data();
  for (int64_t e = 0; e < shape[0]; ++e)
    for (int64_t o = 0; o < shape[1]; ++o)
      for (int64_t r = 0; r < shape[2]; ++r, source += bytes) {
        const auto place = static_cast<size_t>((o * shape[2] + r) * shape[0] + e);
        std::memcpy(ordered.data() + place * bytes, source, bytes);
      }
  return ordered;
}

/// A parameter in the model that PEFT adapts.
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
    if (name.find(".wqkv.") != std::string::npos)
      throw WeightsError(
          "adapters of " + name +
          " cannot be written alone: transformers splits and permutes this "
          "linear of Kimi-K2.5's encoder; without --adapter the merged model is written");
    if (name.starts_with(tower))
      name = tower + running_tower_name(model, tower, name.substr(tower.size()));
    return {"", running_parameter_name(model, name)};
  }
  const std::string root = param.module == kDecoder ? kDecoder + "." : param.module + ".encoder.";
  if (param.name.starts_with(root)) {
    const std::string name = running_parameter_name(model, param.name).substr(root.size());
    return {param.module + "/", running_tower_name(model, root, name)};
  }
  throw WeightsError(
      "adapters of the projector of " + param.module +
      " cannot be written alone: PEFT could load them beside none of the models that "
      "this one is composed of; without --adapter the merged model is written");
}

/// The adapters of one model.
class PeftDirectory {
 public:
  PeftDirectory(const WeightsSource& source, const ModelSpec& model, const std::string& dtype)
      : source_(source),
        dtype_(dtype),
        config_(Json::parse(source.config_json(), nullptr, false)),
        model_(model) {}

  void add(const UnitSpec& unit, const Adapter& adapter) {
    for (const AdapterParams& params : params_of_adapter(model_, unit, adapter)) {
      const std::string linear = running_linear(params.a);
      const std::string target = linear + (is_parameter(adapter, linear) ? ".weight" : "");
      // Blocks may have parts of one linear.
      if (!linears_.emplace(target, &adapter).second) continue;
      for (const int param : {params.a, params.b}) {
        const ParamSpec& spec = model_.params[param];
        const auto found = std::ranges::find(source_.tensors(), spec.name, &TensorInfo::name);
        if (found == source_.tensors().end())
          throw WeightsError(source_.describe() + ": has no " + spec.name);
        const DType dtype = dtype_.empty() ? found->dtype : dtype_from_name(dtype_);
        const std::string ending = spec.name.substr(spec.name.rfind(".lora_"));
        const std::string name = adapter.stacks_experts ? wrapper_of(unit, linear) : linear;
        const Shape shape = spec.tensor_shape();
        matrices_.push_back(
            {spec.name, {kPeftPrefix + name + ending, shape_in_peft(shape, ending), dtype}, shape});
      }
    }
    if (first_.is_null()) first_ = config_.at(kAdapters).at(model_.params[adapter.base].module);
    is_in_out_ |= adapter.order == WeightOrder::InOut && !adapter.stacks_experts;
  }

  void write(const std::string& target, bool replaces) const {
    StagedDirectory directory(target, replaces);
    write_text_durably(directory.path() + "/" + kPeftConfig, config().dump(2) + "\n");
    std::vector<TensorInfo> tensors;
    for (const Matrix& matrix : matrices_) tensors.push_back(matrix.in_file);
    SafetensorsWriter file(directory.path() + "/" + kPeftWeights, tensors);
    std::vector<char> values;
    for (const auto& [name, tensor, shape] : matrices_) {
      const int64_t elements = num_elements(tensor.shape);
      values.resize(static_cast<size_t>(elements) * element_bytes(tensor.dtype));
      source_.read(name, shape, whole(shape), tensor.dtype, values.data());
      if (shape.size() == 3 && name.ends_with(".lora_B.weight"))
        values = in_order_of_peft(values, shape, static_cast<size_t>(element_bytes(tensor.dtype)));
      file.write(tensor.name, 0, elements, values.data());
    }
    file.finish();
    directory.finish();
  }

 private:
  /// Whether PEFT adapts a parameter, not a module: routers other than Gemma 4's are no nn.Linear.
  static bool is_parameter(const Adapter& adapter, const std::string& linear) {
    return adapter.role == "router" && !linear.ends_with(".router.proj");
  }
  /// Returns the running model's name of the linear, or expert stack, that matrix `a` adapts.
  std::string running_linear(int a) const {
    const std::string name = running_name_of(model_, model_.params[a]).name;
    return name.substr(0, name.rfind(".lora_A"));
  }
  /// PEFT wraps a module of stacks once per tensor, gate_up_proj first (see io/peft.cpp).
  std::string wrapper_of(const UnitSpec& unit, const std::string& stack) const {
    const bool has_outer = std::ranges::any_of(unit.adapters, [](const Adapter& one) {
      return one.stacks_experts && one.role == "experts.down";
    });
    const std::string experts = stack.substr(0, stack.rfind('.'));
    return has_outer && stack.ends_with(".gate_up_proj") ? experts + ".base_layer" : experts;
  }
  static Shape shape_in_peft(const Shape& shape, const std::string& ending) {
    if (shape.size() == 2) return shape;
    return ending.starts_with(".lora_A") ? Shape{shape[0] * shape[1], shape[2]}
                                         : Shape{shape[1], shape[2] * shape[0]};
  }

  /// Times it PEFT's alpha is divided by the rank or its root, as the first module's was.
  double alpha_of(const Adapter& adapter, bool is_rslora) const {
    const auto rank = static_cast<double>(rank_of(adapter));
    const bool is_own =
        adapter.scale ==
        adapter_scale({.rank = rank_of(adapter), .alpha = adapter.alpha, .rslora = is_rslora});
    return is_own ? adapter.alpha : adapter.scale * (is_rslora ? std::sqrt(rank) : rank);
  }
  int64_t rank_of(const Adapter& adapter) const { return model_.params[adapter.b].shape.back(); }

  /// The first module's rank and alpha are the adapter's; others stand with the names of linears.
  /// Of rates of dropout, which change nothing of what is computed, PEFT has one: the largest.
  Json config() const {
    const bool is_rslora = first_.at("rslora");
    const auto alpha = first_.at("alpha").get<double>();
    Json targets = Json::array(), parameters = Json::array();
    Json ranks = Json::object(), alphas = Json::object();
    double dropout = 0;
    for (const auto& [linear, adapter] : linears_) {
      const bool is_module = !adapter->stacks_experts && !linear.ends_with(".weight");
      (is_module ? targets : parameters).push_back(linear);
      if (const int64_t rank = rank_of(*adapter); rank != first_.at("rank")) ranks[linear] = rank;
      if (const double own = alpha_of(*adapter, is_rslora); own != alpha)
        alphas[linear] = number(own);
      dropout = std::max(dropout, adapter->dropout);
    }
    // PEFT refuses dropout with target_parameters.
    if (!parameters.empty()) dropout = 0;
    Json config{{"peft_type", "LORA"},
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
    if (!parameters.empty()) config["target_parameters"] = parameters;
    return config;
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
      directories.try_emplace(directory, source, model, dtype).first->second.add(unit, adapter);
    }
  if (directories.size() == 1 && directories.begin()->first.empty())
    return directories.begin()->second.write(target, replaces);
  StagedDirectory whole(target, replaces);
  for (const auto& [directory, adapters] : directories)
    adapters.write(whole.path() + "/" + directory, false);
  whole.finish();
}

}  // namespace zea
