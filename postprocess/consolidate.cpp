// SPDX-License-Identifier: Apache-2.0
// zea-consolidate: joins the shards of a checkpoint (or a weights file) to one model for others to
// load, or reshards them for another number of ranks. Memory is bounded by an option, not by the
// model.
#include <cstdio>
#include <set>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "io/checkpoint.hpp"
#include "io/model_source.hpp"
#include "io/open_source.hpp"
#include "outputs.hpp"
#include "tool.hpp"

namespace zea {
namespace {

struct ConsolidateOptions {
  std::string source, companions;
  std::string part = {};  ///< of a composed model: where it will be
  OutputOptions output;
  CopyOptions copy;
  int64_t ranks = 0;  ///< 0: no shards
  bool with_optimizer = false;
  bool adapter_alone = false;
  bool show_progress = false;
};

void copy_companions(const WeightsSource& source, ModelOutput& output) {
  for (const std::string& name : source.companions())
    output.add_companion(name, source.companion(name));
}

/// The type that the model's config.json names, as transformers reads it.
std::optional<DType> dtype_of_config(const std::string& config_json) {
  const nlohmann::json config = nlohmann::json::parse(config_json, nullptr, false);
  if (!config.is_object()) return std::nullopt;
  for (const nlohmann::json& part : {config, config.value("text_config", nlohmann::json())})
    for (const char* key : {"dtype", "torch_dtype"})
      if (part.contains(key) && part[key].is_string())
        if (const auto found = find_dtype(part[key]); found && is_floating(*found)) return found;
  return std::nullopt;
}

struct WrittenTensors {
  std::vector<TensorInfo> tensors;
  std::string said;  ///< of their types; empty: nothing
};

/// The tensors to write. Training holds what it trains in wider types than the model came in; as a
/// directory it has its own again.
WrittenTensors written_tensors(const ConsolidateOptions& options, const WeightsSource& source) {
  std::vector<TensorInfo> tensors = source.tensors();
  for (TensorInfo& tensor : tensors) tensor.dtype = options.copy.dtype_for(tensor.dtype);
  if (options.with_optimizer || !is_directory_target(options.output.target)) return {tensors, ""};
  const std::optional<DType> own = dtype_of_config(source.config_json());
  std::set<std::string> held, written;
  for (TensorInfo& tensor : tensors) {
    if (!is_floating(tensor.dtype) || !options.copy.dtype.empty() || !own) continue;
    const DType wanted = is_correction_bias(tensor.name) ? DType::Float32 : *own;
    if (element_bytes(tensor.dtype) <= element_bytes(wanted)) continue;
    held.insert(dtype_name(tensor.dtype));
    tensor.dtype = wanted;
  }
  for (const TensorInfo& tensor : tensors) written.insert(dtype_name(tensor.dtype));
  const std::string& target = options.part.empty() ? options.output.target : options.part;
  std::string said = target + " is written in " + join(written);
  if (!held.empty())
    said += ", as the model's config.json says; --dtype " + *held.begin() + " keeps what it was of";
  return {tensors, said + "\n"};
}

/// Describes the step, layout and element types that are copied, and the target.
std::string describe_copy(const WeightsSource& source, const ConsolidateOptions& options) {
  std::string text = "took " + source.describe() + ": ";
  if (const auto* state = dynamic_cast<const StateSource*>(&source))
    text += "step " + std::to_string(state->position().step) + " of run " + state->run_id() + ", ";
  if (const auto* checkpoint = dynamic_cast<const CheckpointSource*>(&source))
    text += "written by " + std::to_string(checkpoint->manifest().world_size) + " ranks (" +
            checkpoint->manifest().mesh + "), ";
  std::set<std::string> types;
  for (const TensorInfo& tensor : source.tensors()) types.insert(dtype_name(tensor.dtype));
  return text + join(types, " and ") + "\nwrote " + options.output.target +
         (options.copy.dtype.empty() ? "" : " in " + options.copy.dtype);
}

/// `whole`: what may have optimizer state besides the weights of `source`.
void consolidate(const ConsolidateOptions& options, const WeightsSource& source,
                 const WeightsSource& whole) {
  const auto [tensors, said] = written_tensors(options, source);
  OutputOptions output_options = options.output;
  if (options.with_optimizer) output_options.state = &state_of(whole);
  ModelOutput output(output_options, source.config_json(), tensors);
  Progress progress(output.bytes(), options.show_progress);
  copy_pieces(source, output_options.state, output.pieces(), options.copy.limits(),
              [&](Piece& piece, int64_t first, int64_t count, const void* data) {
                output.write(piece, first, count, data);
                progress.add(count * static_cast<int64_t>(element_bytes(piece.dtype)));
              });
  copy_companions(source, output);
  output.finish();
  std::fputs(printable(said).c_str(), stdout);
}

/// With the files of another source besides its own weights.
class WithCompanions : public SourceOver {
 public:
  WithCompanions(const WeightsSource& weights, std::unique_ptr<WeightsSource> others)
      : SourceOver(weights), others_(std::move(others)) {}

  std::vector<std::string> companions() const override { return others_->companions(); }
  std::string companion(const std::string& name) const override { return others_->companion(name); }

 private:
  std::unique_ptr<WeightsSource> others_;
};

/// As models that others know, each with its own companion files.
void consolidate_parts(const ConsolidateOptions& options, const std::vector<ModelPart>& parts) {
  if (parts.size() == 1) return consolidate(options, *parts.front().source, *parts.front().source);
  const std::string target = without_trailing_slash(options.output.target) + "/";
  std::string names;
  for (const ModelPart& part : parts) names += " " + part.directory;
  std::printf(
      "transformers has no model of this shape; %s gets its parts, each a model of its own, "
      "and projectors, which are none:%s (zea goes on with *.h5 or *.safetensors)\n",
      target.c_str(), names.c_str());
  StagedDirectory whole(target, options.output.replaces);
  for (const ModelPart& part : parts) {
    ConsolidateOptions of_part = options;
    of_part.output.target = whole.path() + "/" + part.directory;
    of_part.part = target + part.directory;
    consolidate(of_part, *part.source, *part.source);
  }
  whole.finish();
}

bool writes_model_directory(const ConsolidateOptions& options) {
  return options.ranks == 0 && is_directory_target(options.output.target);
}

bool keeps_state(const ConsolidateOptions& options) {
  return options.with_optimizer || options.ranks > 0;
}

void check_options(const ConsolidateOptions& options) {
  if (keeps_state(options) && !options.copy.dtype.empty())
    throw CLI::ValidationError("--dtype", "optimizer state keeps its element type; leave it out");
  if (options.ranks > 0 && !options.companions.empty())
    throw CLI::ValidationError("--companions", "a checkpoint has no place for them");
  if (!writes_model_directory(options) &&
      options.output.max_shard_bytes != OutputOptions{}.max_shard_bytes)
    throw CLI::ValidationError("--max-shard-size", "is of a directory's files; leave it out");
  if (options.output.target.ends_with(".safetensors") && !options.companions.empty())
    throw CLI::ValidationError("--companions", "a safetensors file has no place for them");
  if (options.adapter_alone && (keeps_state(options) || !options.companions.empty()))
    throw CLI::ValidationError(
        "--adapter", "writes adapters alone; leave --optimizer, --ranks and --companions out");
}

/// Whatever `found` holds, as the options say.
void write(const ConsolidateOptions& options, std::unique_ptr<WeightsSource> found) {
  if (options.adapter_alone)
    return write_peft_adapter(*found, options.output.target, options.copy.dtype,
                              options.output.replaces);
  const auto source = keeps_state(options) ? std::move(found) : merge_adapters(std::move(found));
  // Tokenizer and other texts come from the source, or from where the user says.
  std::optional<WithCompanions> with;
  if (!options.companions.empty()) with.emplace(*source, open_weights(options.companions));
  const WeightsSource& model = with ? *with : *source;
  std::vector<ModelPart> parts;
  if (writes_model_directory(options)) parts = parts_of(model);
  if (!parts.empty()) return consolidate_parts(options, parts);
  if (options.ranks == 0) return consolidate(options, model, *source);
  reshard(state_of(*source), {.target = options.output.target,
                              .ranks = options.ranks,
                              .limits = options.copy.limits(),
                              .show_progress = options.show_progress,
                              .replaces = options.output.replaces});
}

void run(const ConsolidateOptions& options) {
  check_options(options);
  read_newest(options.source, DamagedNewest::PassOver, [&](const std::string& path) {
    auto source = open_weights(path);
    const auto* state = dynamic_cast<const StateSource*>(source.get());
    const std::string note = state ? state->note() : "", text = describe_copy(*source, options);
    write(options, std::move(source));
    if (!note.empty()) std::fprintf(stderr, "note: %s\n", printable(note).c_str());
    std::printf("%s\n", printable(text).c_str());
  });
}

void add_options(CLI::App& app, ConsolidateOptions& options) {
  app.add_option("source", options.source,
                 "Checkpoint, run directory (its newest undamaged checkpoint), weights file, "
                 "safetensors file or Hugging Face directory")
      ->required();
  app.add_option("target", options.output.target,
                 "Output: *.h5, *.safetensors, a Hugging Face directory (ends with '/'), or with "
                 "--ranks the directory of a checkpoint")
      ->required();
  app.add_flag("--force", options.output.replaces,
               "Replace an existing target once the new one is complete; never a directory that "
               "has other files");
  app.add_flag("--optimizer", options.with_optimizer,
               "Include optimizer states and the run's position, so that zea -r resumes from the "
               "file (*.h5)");
  app.add_flag("--adapter", options.adapter_alone,
               "Write only the LoRA adapters, as a directory that PEFT loads onto their base "
               "model; by default they are merged into the weights");
  app.add_option("--ranks", options.ranks,
                 "Write a checkpoint of this number of shard files, with optimizer states")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option_function<std::string>(
      "--max-shard-size",
      [&options](const std::string& text) {
        options.output.max_shard_bytes = parse_byte_size("--max-shard-size", text, 1);
        if (options.output.max_shard_bytes < 1)
          throw CLI::ValidationError("--max-shard-size", "must be at least 1B");
      },
      "Largest safetensors file of a Hugging Face directory: 5GB, 500MiB (default 50GB)");
  app.add_option("--companions", options.companions,
                 "Weights file or Hugging Face directory whose tokenizer and processor files "
                 "replace those of the source");
  app.add_flag("--progress", options.show_progress, "Show progress even without a terminal");
  options.copy.add_to(app);
}

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::ConsolidateOptions options;
  CLI::App app(
      "Merges a checkpoint into a weights file, safetensors file or Hugging Face directory, or "
      "reshards it for another number of ranks.",
      "zea-consolidate");
  zea::add_options(app, options);
  return zea::run_tool(app, argc, argv, [&] { zea::run(options); });
}
