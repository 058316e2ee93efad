// SPDX-License-Identifier: Apache-2.0
// zea-import: a Hugging Face directory, or initial weights drawn from its config alone, to a
// weights file. Names become those of the files that transformers writes now, and the tensors are
// checked against the model that the config makes.
#include <map>

#include "tool.hpp"
#include "zea/io/companions.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/initial_weights.hpp"
#include "zea/io/safetensors.hpp"
#include "zea/io/tensor_stream.hpp"
#include "zea/io/weights_file.hpp"
#include "zea/plan/model_spec.hpp"
#include "zea/plan/parameter_names.hpp"

namespace zea {
namespace {

struct ImportOptions {
  std::vector<std::string> paths;
  std::string random_config;
  uint64_t seed = 0;
  CopyOptions copy;
};

/// A tensor of the source under the name that the weights file gives it.
using Renamed = std::map<std::string, TensorInfo>;

Renamed rename_tensors(const WeightsSource& source, const ModelSpec& model) {
  Renamed renamed;
  for (const TensorInfo& tensor : source.tensors()) {
    if (is_computed_buffer(tensor.name)) continue;
    const std::string name = model.vision ? canonical_parameter_name(tensor.name) : tensor.name;
    // A tied head is the embedding: files may carry it, models do not have it.
    if (model.text.tied_embeddings && name.ends_with("lm_head.weight")) continue;
    const auto [place, is_new] = renamed.emplace(name, tensor);
    if (!is_new)
      throw WeightsError(source.describe() + ": \"" + place->second.name + "\" and \"" +
                         tensor.name + "\" are both called \"" + name + "\"");
  }
  return renamed;
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const int64_t length : shape) text += (text.empty() ? "" : ", ") + std::to_string(length);
  return "(" + text + ")";
}

/// "; missing: a, b" or nothing.
std::string list_text(const std::string& title, const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text.empty() ? "" : "; " + title + ": " + text;
}

/// Throws with everything that differs between the file and the model.
void check_against_model(const Renamed& tensors, const ModelSpec& model, const std::string& where) {
  std::vector<std::string> missing, unexpected, wrong;
  for (const ParamSpec& param : model.params) {
    const auto found = tensors.find(param.name);
    if (found == tensors.end())
      missing.push_back(param.name + " " + shape_text(param.shape));
    else if (found->second.shape != param.shape)
      wrong.push_back(found->second.name + " is " + shape_text(found->second.shape) +
                      ", the model wants " + shape_text(param.shape));
    else if (!is_floating(found->second.dtype))
      wrong.push_back(found->second.name + " is " + dtype_name(found->second.dtype) +
                      ", the model wants a floating type");
  }
  for (const auto& [name, tensor] : tensors)
    if (model.param_index(name) < 0) unexpected.push_back(tensor.name);
  const std::string faults = list_text("missing", missing) + list_text("unexpected", unexpected) +
                             list_text("wrong", wrong);
  if (!faults.empty())
    throw WeightsError(where + ": the tensors are not those of the model in config.json" + faults);
}

std::unique_ptr<WeightsSource> open_import_source(const ImportOptions& options) {
  if (options.random_config.empty()) return open_safetensors(options.paths.front());
  return make_initial_weights(read_model_text(options.random_config), options.seed);
}

/// Directory whose companion files go along.
std::string companion_directory(const ImportOptions& options) {
  return options.random_config.empty() ? options.paths.front()
                                       : parent_directory(options.random_config);
}

/// Random weights are drawn in float64; unless asked otherwise they are written as models are
/// trained.
DType written_dtype(const ImportOptions& options, DType found) {
  if (!options.random_config.empty() && options.copy.dtype.empty()) return DType::Float32;
  return options.copy.dtype_for(found);
}

void import_weights(const ImportOptions& options) {
  const auto source = open_import_source(options);
  const std::string config = source->config_json();
  if (config.empty()) throw WeightsError(source->describe() + ": has no config.json");
  const ModelSpec model = make_model_spec(config);
  const Renamed tensors = rename_tensors(*source, model);
  check_against_model(tensors, model, source->describe());

  std::vector<TensorInfo> written;
  for (const auto& [name, tensor] : tensors)
    written.push_back({name, tensor.shape, written_dtype(options, tensor.dtype)});
  check_free_bytes(options.paths.back(), total_bytes(written));
  WeightsWriter writer(options.paths.back(), config);
  std::vector<char> buffer(options.copy.buffer_bytes());
  for (const TensorInfo& tensor : written) {
    writer.add(tensor);
    stream_tensor(*source, tensors.at(tensor.name), tensor.dtype, buffer,
                  [&](int64_t first, int64_t count, const void* data) {
                    writer.write(tensor.name, first, count, data);
                  });
  }
  const std::string directory = companion_directory(options);
  for (const std::string& name : companion_names(directory))
    writer.add_companion(name, read_model_text(directory + "/" + name));
  writer.finish();
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::ImportOptions options;
  CLI::App app("Makes a weights file (HDF5) from a Hugging Face directory, or from a config alone.",
               "zea-import");
  app.add_option(
         "paths", options.paths,
         "The directory (config.json and safetensors), then the weights file to write; with "
         "--random only the weights file")
      ->required()
      ->expected(1, 2);
  app.add_option("--random", options.random_config,
                 "Draw initial weights for this config.json instead of reading a directory");
  app.add_option("--seed", options.seed, "Seed of --random (default 0)");
  options.copy.add_to(app);
  return zea::run_tool(app, argc, argv, [&] {
    const size_t wanted = options.random_config.empty() ? 2 : 1;
    if (options.paths.size() != wanted)
      throw CLI::ValidationError("paths", wanted == 2 ? "give a directory and a weights file"
                                                      : "give only the weights file with --random");
    zea::import_weights(options);
  });
}
