// SPDX-License-Identifier: Apache-2.0
#include "spec/precision.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

DType dtype_of(DTypeOption option, DType preset) {
  if (option == DTypeOption::Preset) return preset;
  return option == DTypeOption::Bf16 ? DType::BFloat16 : DType::Float32;
}

Precision make_precision(const Options& options, const std::string& name) {
  const PrecisionPreset preset = options.precision.preset;
  const ModulePrecisionOptions& module = options.precisions[name];
  Precision precision;
  precision.master = preset == PrecisionPreset::Fp64 ? DType::Float64 : DType::Float32;
  precision.param = dtype_of(module.param_dtype,
                             preset == PrecisionPreset::Bf16 ? DType::BFloat16 : precision.master);
  precision.reduce = dtype_of(module.reduce_dtype, precision.master);
  precision.output = dtype_of(module.output_dtype, precision.param);
  return precision;
}

/// A module's output changes its type only where another module reads it.
bool has_reader_elsewhere(const ModelSpec& model, const std::string& module) {
  const auto reads = [&](const UnitInput& input) {
    return model.units[input.unit].module == module;
  };
  return std::ranges::any_of(model.units, [&](const UnitSpec& unit) {
    return unit.module != module && std::ranges::any_of(unit.inputs, reads);
  });
}

void check_output(Faults& faults, const Options& options, const ModelSpec& model,
                  const std::string& module) {
  const Precision precision = make_precision(options, module);
  if (precision.output == precision.param || options.precision.preset == PrecisionPreset::Fp64 ||
      has_reader_elsewhere(model, module))
    return;
  faults.add(
      "precision." + module + ".output_dtype = \"" + options.precisions[module].output_dtype +
      "\": no other module takes what it gives out (the loss is computed from it where it "
      "is made), so there is nothing to convert; leave it out, or choose the type that it "
      "computes in by precision." +
      module + ".param_dtype (a run that goes on: precision." + module + ".output_dtype=preset)");
}

}  // namespace

Precisions make_precisions(const Options& options, const ModelSpec& model) {
  Precisions precisions;
  for (const std::string& module : model.modules())
    precisions[module] = make_precision(options, module);
  return precisions;
}

void check_precision(Faults& faults, const Options& options, const ModelSpec& model) {
  if (options.precision.master_dtype == DTypeOption::Bf16)
    faults.add(
        "precision.master_dtype = \"bf16\": masters in bf16 lose every update smaller than 1/256 "
        "of a weight, so training stalls; allowed: \"preset\", \"fp32\" (precision.*.param_dtype = "
        "\"bf16\" computes in bf16)");
  const auto check_preset = [&](const std::string& key, const Choice<DTypeOption>& found) {
    if (options.precision.preset == PrecisionPreset::Fp64 && found != DTypeOption::Preset)
      faults.add("precision." + key + " = \"" + found +
                 "\" with precision.preset = \"fp64\", in which everything is fp64; leave it out");
  };
  check_preset("master_dtype", options.precision.master_dtype);
  const auto check_module = [&](const std::string& name, const ModulePrecisionOptions& module) {
    check_preset(name + ".param_dtype", module.param_dtype);
    check_preset(name + ".reduce_dtype", module.reduce_dtype);
    check_preset(name + ".output_dtype", module.output_dtype);
  };
  for (const std::string& module : model.modules()) {
    check_module(module, options.precisions[module]);
    check_output(faults, options, model, module);
  }
  // The reader of features, the language model, casts them.
  for (const std::string& module : model.modules())
    if ((module != kDecoder || model.encoders.empty()) &&
        !options.precisions[module].cast_forward_inputs)
      faults.add(
          "precision." + module +
          ".cast_forward_inputs = false: nothing comes to it from another module; leave it out");
  const DType wanted = make_precision(options, kDecoder).param;
  for (const EncoderSpec& encoder : model.encoders) {
    const DType features = make_precision(options, encoder.name).output;
    if (!options.precisions[kDecoder].cast_forward_inputs && features != wanted)
      faults.add("precision." + kDecoder + ".cast_forward_inputs = false, but the " + encoder.name +
                 " module gives out " + dtype_name(features) +
                 " and the language model computes in " + dtype_name(wanted) +
                 "; set it to true, or precision." + encoder.name +
                 ".output_dtype to the same type");
  }
}

}  // namespace zea::detail
