// SPDX-License-Identifier: Apache-2.0
#include "module_precision.hpp"

namespace zea::detail {
namespace {

DType named_dtype(const std::string& name, DType preset) {
  if (name == "preset") return preset;
  return name == "bf16" ? DType::BFloat16 : DType::Float32;
}

}  // namespace

Precision make_precision(const PrecisionOptions& all, const ModulePrecisionOptions& module) {
  const bool is_fp64 = all.preset == "fp64";
  Precision precision;
  precision.master = is_fp64 ? DType::Float64 : DType::Float32;
  precision.param =
      named_dtype(module.param_dtype, all.preset == "bf16" ? DType::BFloat16 : precision.master);
  precision.reduce = named_dtype(module.reduce_dtype, precision.master);
  precision.output = named_dtype(module.output_dtype, precision.param);
  return precision;
}

void check_precision(Faults& faults, const Options& options, const ModelSpec& model) {
  if (options.precision.master_dtype == "bf16")
    faults.add(
        "precision.master_dtype = \"bf16\": masters in bf16 lose every update smaller than 1/256 "
        "of a weight, so training stalls; allowed: \"preset\", \"fp32\" (precision.*.param_dtype = "
        "\"bf16\" computes in bf16)");
  const auto check_preset = [&](const std::string& key, const std::string& found) {
    if (options.precision.preset == "fp64" && found != "preset")
      faults.add("precision." + key + " = \"" + found +
                 "\" with precision.preset = \"fp64\", in which everything is fp64; leave it out");
  };
  check_preset("master_dtype", options.precision.master_dtype);
  const auto check_module = [&](const std::string& name, const ModulePrecisionOptions& module) {
    check_preset(name + ".param_dtype", module.param_dtype);
    check_preset(name + ".reduce_dtype", module.reduce_dtype);
    check_preset(name + ".output_dtype", module.output_dtype);
  };
  if (model.vision) check_module("vision", options.precision_vision);
  check_module("llm", options.precision_llm);
  const auto refuse_uncast = [&](const std::string& name) {
    faults.add(
        "precision." + name +
        ".cast_forward_inputs = false: nothing comes to it from another module; leave it out");
  };
  if (!options.precision_vision.cast_forward_inputs && model.vision) refuse_uncast("vision");
  if (!options.precision_llm.cast_forward_inputs && !model.vision) refuse_uncast("llm");
  const DType features = make_precision(options.precision, options.precision_vision).output;
  const DType wanted = make_precision(options.precision, options.precision_llm).param;
  if (model.vision && !options.precision_llm.cast_forward_inputs && features != wanted)
    faults.add(std::string("precision.llm.cast_forward_inputs = false, but the vision module gives "
                           "out ") +
               dtype_name(features) + " and the language model computes in " + dtype_name(wanted) +
               "; set it to true, or precision.vision.output_dtype to the same type");
}

}  // namespace zea::detail
