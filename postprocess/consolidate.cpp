// SPDX-License-Identifier: Apache-2.0
// zea-consolidate: the shards of a checkpoint (or a weights file) put together to one model for
// others to load. Memory is bounded by an option, not by the model.
#include "model_output.hpp"
#include "tool.hpp"
#include "zea/io/open_source.hpp"
#include "zea/io/tensor_stream.hpp"

namespace zea {
namespace {

struct ConsolidateOptions {
  std::string source, target, companions;
  CopyOptions copy;
};

/// Tokenizer and other texts come from the source, or, since checkpoints have none, from where the
/// user says.
void copy_companions(const WeightsSource& source, ModelOutput& output) {
  for (const std::string& name : source.companions())
    output.add_companion(name, source.companion(name));
}

void consolidate(const ConsolidateOptions& options) {
  const auto source = open_source(options.source);
  std::vector<TensorInfo> tensors = source->tensors();
  for (TensorInfo& tensor : tensors) tensor.dtype = options.copy.dtype_for(tensor.dtype);
  ModelOutput output(options.target, source->config_json(), tensors);
  std::vector<char> buffer(options.copy.buffer_bytes());
  for (const TensorInfo& tensor : tensors)
    stream_tensor(*source, tensor, tensor.dtype, buffer,
                  [&](int64_t first, int64_t count, const void* data) {
                    output.write(tensor, first, count, data);
                  });
  if (options.companions.empty())
    copy_companions(*source, output);
  else
    copy_companions(*open_source(options.companions), output);
  output.finish();
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::ConsolidateOptions options;
  CLI::App app(
      "Puts a checkpoint together to one weights file, safetensors file or Hugging Face directory.",
      "zea-consolidate");
  app.add_option("source", options.source,
                 "Checkpoint, run directory (its newest complete checkpoint), or weights file")
      ->required();
  app.add_option(
         "target", options.target,
         "What to write: *.h5, *.safetensors, or a directory ending with '/'; an existing file "
         "is replaced when the new one is complete")
      ->required();
  app.add_option(
      "--companions", options.companions,
      "Weights file or Hugging Face directory whose tokenizer and processor files to add");
  options.copy.add_to(app);
  return zea::run_tool(app, argc, argv, [&] { zea::consolidate(options); });
}
