// SPDX-License-Identifier: Apache-2.0
// zea-import: a Hugging Face directory, or initial weights drawn from its config alone, to a
// weights file. Names become those of the files that transformers writes now, and the tensors are
// checked against the model that the config makes.
#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/model_files.hpp"
#include "io/model_source.hpp"
#include "io/safetensors.hpp"
#include "io/upcycled_source.hpp"
#include "io/weights_file.hpp"
#include "tool.hpp"
#include "zea/copy.hpp"

namespace zea {
namespace {

struct ImportOptions {
  std::vector<std::string> paths;
  std::string random_config;
  uint64_t seed = 0;
  int64_t upcycled_experts = 0;  ///< 0: a dense model stays one
  int64_t experts_per_token = 2;
  CopyOptions copy;
};

ModelSource open_import_source(const ImportOptions& options) {
  if (options.upcycled_experts > 0) {
    // Under the names of the family, which files may spell otherwise.
    auto dense = std::make_unique<ModelSource>(open_safetensors(options.paths.front()), "");
    return {upcycle(std::move(dense), {.experts = options.upcycled_experts,
                                       .chosen = options.experts_per_token,
                                       .seed = options.seed}),
            ""};
  }
  if (options.random_config.empty()) return {open_safetensors(options.paths.front()), ""};
  return {nullptr,
          read_model_config(options.random_config),
          {.seed = options.seed, .config_path = options.random_config}};
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
  const std::string& target = options.paths.back();
  if (!target.ends_with(".h5"))
    throw DeckError(target + ": a weights file is to be written; end its name with .h5");
  const ModelSource source = open_import_source(options);
  std::vector<std::string> notes = source.model().notes;
  if (!source.note().empty() && options.random_config.empty()) notes.push_back(source.note());
  for (const std::string& note : notes)
    std::fprintf(stderr, "zea-import: note: %s\n", printable(note).c_str());

  std::vector<TensorInfo> tensors = source.tensors();
  for (TensorInfo& tensor : tensors) tensor.dtype = written_dtype(options, tensor.dtype);
  check_free_bytes(target, total_bytes(tensors));
  WeightsWriter writer(target, source.config_json());
  std::vector<Piece> pieces;
  for (const TensorInfo& tensor : tensors) {
    writer.add(tensor);
    pieces.push_back(make_whole_piece(tensor, kStateParameter, kStateFile, tensor.name));
  }
  copy_pieces(source, nullptr, pieces, options.copy.limits(),
              [&](const Piece& piece, int64_t first, int64_t count, const void* data) {
                writer.write(piece.dataset, first, count, data);
              });
  const std::string directory = companion_directory(options);
  for (const std::string& name : companion_names(directory))
    writer.add_companion(name, read_model_text(directory + "/" + name));
  writer.finish();
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::ImportOptions options;
  CLI::App app(
      "Converts a Hugging Face directory to a weights file (HDF5), or initializes one from a "
      "config.json.",
      "zea-import");
  app.add_option(
         "paths", options.paths,
         "The directory (config.json and safetensors), then the weights file to write; with "
         "--random only the weights file")
      ->required()
      ->expected(1, 2);
  app.add_option("--random", options.random_config,
                 "Initialize weights randomly for this config.json instead of reading a directory");
  CLI::Option* const upcycle =
      app.add_option("--upcycle", options.upcycled_experts,
                     "Convert a dense model to a mixture of this number of experts, each a copy of "
                     "the MLP, with new routers; logits do not change")
          ->type_name("EXPERTS")
          ->check(CLI::Range(2, 1 << 10));
  app.add_option("--experts-per-token", options.experts_per_token,
                 "With --upcycle: experts that each token chooses (default 2)")
      ->needs(upcycle)
      ->check(CLI::Range(1, 1 << 10));
  app.add_option("--seed", options.seed, "Seed of --random and of routers (default 0)");
  options.copy.add_to(app);
  return zea::run_tool(app, argc, argv, [&] {
    const size_t wanted = options.random_config.empty() ? 2 : 1;
    if (options.paths.size() != wanted)
      throw CLI::ValidationError("paths", wanted == 2 ? "give a directory and a weights file"
                                                      : "give only the weights file with --random");
    if (options.upcycled_experts > 0 && !options.random_config.empty())
      throw CLI::ValidationError("--upcycle", "it needs a dense model, and --random has none");
    if (options.experts_per_token > options.upcycled_experts && options.upcycled_experts > 0)
      throw CLI::ValidationError("--experts-per-token", "at most the experts of --upcycle");
    zea::import_weights(options);
  });
}
