// SPDX-License-Identifier: Apache-2.0
#include "library/start.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/learning_rate.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/composed_source.hpp"
#include "io/model_files.hpp"
#include "io/model_source.hpp"
#include "io/open_source.hpp"
#include "io/peft.hpp"
#include "schedule/plan.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// A deck may name a pipe, which lies beside nothing; a model's directory must have files.
std::string read_named_config(const std::string& path) {
  std::error_code not_there;
  if (!fs::is_fifo(path, not_there)) return read_model_config(path);
  std::ifstream pipe(path);
  return {std::istreambuf_iterator<char>(pipe), std::istreambuf_iterator<char>()};
}

/// Opens weights, with adapters of an earlier run merged into their linears. `open`:
/// open_weights(), or open_for_plan() for a plan.
using OpenModel = std::unique_ptr<WeightsSource> (*)(const std::string& path);
std::unique_ptr<WeightsSource> open_model(const std::string& path, OpenModel open = open_weights) {
  return merge_adapters(open(path));
}

/// The deck inside a checkpoint that lies in no run directory may be foreign: the user names
/// the folders that it would write to.
void check_named(const CommandLine& line, const Options& options) {
  std::string unnamed;
  if (line.directory.empty() && !is_overridden("run.directory", line.overrides))
    unnamed = "the run directory: -d DIRECTORY";
  if (!options.data.cache_features.empty() && !is_overridden("data.cache_features", line.overrides))
    unnamed += std::string(unnamed.empty() ? "" : "; ") +
               "the folder of kept features, which that deck has as " +
               options.data.cache_features + ": data.cache_features=FOLDER, or \"\" for none";
  if (!unnamed.empty())
    throw DeckError(line.restart +
                    " lies in no run directory (RUN/checkpoints/step-N), so the "
                    "folders of the deck inside are not taken. Name " +
                    unnamed);
}

/// Returns runs/<deck's name> unless the deck or the command line name another; a resumed run
/// stays in its directory.
std::string choose_directory(const CommandLine& line, const Options& options,
                             const std::string& restarted) {
  if (!line.restart.empty() && restarted.empty() && line.deck.empty()) check_named(line, options);
  if (!line.directory.empty()) return line.directory;
  if (!restarted.empty() && !is_overridden("run.directory", line.overrides)) return restarted;
  if (!options.run.directory.empty()) return options.run.directory;
  return (fs::path("runs") / fs::path(line.deck).stem()).string();
}

/// Returns the deck of a checkpoint, with the overrides of a command line.
Options deck_of(const StateSource& checkpoint, const std::vector<std::string>& overrides = {}) {
  return parse_deck(checkpoint.deck(), "the deck in " + checkpoint.describe(), overrides);
}

/// Checks that a run resumes with the batches that it would have had: its position counts them.
void check_same_batches(const Options& now, const Options& then, const StateSource& checkpoint) {
  if (checkpoint.position().step == 0) return;
  const auto refuse = [&](const std::string& key, const std::string& found,
                          const std::string& was) {
    throw DeckError(key + " = " + found + ", but the run that is resumed has " + was +
                    ", and its position in the data counts batches drawn with it; keep " + was +
                    ", or start a new run from its consolidated weights");
  };
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (now.schedule.global_batch != then.schedule.global_batch)
    refuse("schedule.global_batch", text(now.schedule.global_batch),
           text(then.schedule.global_batch));
  if (now.run.seed != then.run.seed) refuse("run.seed", text(now.run.seed), text(then.run.seed));
  if (now.data.shuffle != then.data.shuffle)
    refuse("data.shuffle", now.data.shuffle ? "true" : "false",
           then.data.shuffle ? "true" : "false");
  // The paths of the sets may change.
  const auto weights = [](const Options& options) {
    std::vector<double> all;
    for (const DataSource& set : options.data.train.sets) all.push_back(set.weight);
    return all;
  };
  const auto text_of = [](const std::vector<double>& all) {
    std::ostringstream out;
    out << "sets of weight ";
    for (size_t set = 0; set < all.size(); ++set) out << (set > 0 ? ", " : "") << all[set];
    return out.str();
  };
  if (weights(now) != weights(then))
    refuse("data.train", text_of(weights(now)), text_of(weights(then)));
}

/// Keeps the model and weights of the checkpoint, whatever the deck says. A command line that
/// names others is refused; one that names those which the run began with, as a script does at
/// every start, is not.
void keep_weights(const CommandLine& line, Options& options, const Options& before,
                  const StateSource& checkpoint) {
  std::string found;
  const auto keep = [&](const std::string& key, auto& now, const auto& then) {
    if (now != then && is_overridden(key, line.overrides))
      found += (found.empty() ? "" : ", ") + key;
    now = then;
  };
  keep("model.weights", options.model.weights, before.model.weights);
  keep("model.config", options.model.config, before.model.config);
  keep("model.load_modules", options.model.load_modules, before.model.load_modules);
  keep("model.strict", options.model.strict, before.model.strict);
  keep("model." + kDecoder + ".weights", options.llm.weights, before.llm.weights);
  keep("model." + kDecoder + ".lora", options.llm.lora, before.llm.lora);
  for (auto& [encoder, now] : options.encoders) {
    const EncoderOptions& then = before.encoders[encoder];
    keep("model." + encoder + ".weights", now.weights, then.weights);
    keep("model." + encoder + ".placeholder", now.placeholder, then.placeholder);
    keep("model." + encoder + ".projector", now.projector, then.projector);
    keep("model." + encoder + ".feature_layer", now.feature_layer, then.feature_layer);
    keep("model." + encoder + ".feature_norm", now.feature_norm, then.feature_norm);
    keep("model." + encoder + ".lora", now.lora, then.lora);
  }
  if (found.empty()) return;
  throw DeckError(found +
                  " on a command line with -r, which goes on with the model and the weights "
                  "of " +
                  checkpoint.describe() +
                  ", all of them; leave it out, or start a new run: without -r, in a directory of "
                  "its own, with that checkpoint as model.weights");
}

/// Throws the faults of a deck together with those of its plan, as far as it can be planned.
[[noreturn]] void throw_all_faults(const FaultyDeck& faulty, int ranks) {
  std::string faults = faulty.what();
  try {
    const ModelOptions& model = faulty.options.model;
    const std::string config = model.config.empty() ? open_model(model.weights)->config_json()
                                                    : read_named_config(model.config);
    make_plan(faulty.options, config, ranks);
  } catch (const PlanError& error) {
    faults += std::string("\n") + error.what();
  } catch (const Error&) {
    // Weights that cannot be read are reported when the deck is right.
  }
  throw DeckError(faults);
}

Options read_options(const CommandLine& line, const StateSource* checkpoint, int ranks) {
  try {
    if (!line.deck.empty()) return read_deck(line.deck, line.overrides);
    if (checkpoint) return deck_of(*checkpoint, line.overrides);
  } catch (const FaultyDeck& faulty) {
    throw_all_faults(faulty, ranks);
  }
  throw DeckError("no deck: give one with -i, or a run to go on with -r; zea -h lists all options");
}

/// Returns the adapters of the deck's sections: new ones, or those of PEFT's directories.
std::vector<NewAdapters> adapters_of(const Options& options, const ModelSpec& model) {
  std::vector<NewAdapters> adapters;
  std::map<std::string, std::set<std::string>> asked;  // modules of a directory
  for (const auto& [encoder, section] : options.encoders)
    asked[section.lora.weights].insert(encoder);
  asked[options.llm.lora.weights].insert(kDecoder);
  const auto add = [&](const std::string& module, const LoraOptions& lora) {
    if (!lora.weights.empty()) {
      adapters.push_back(open_peft_adapter(lora.weights, model, module, asked[lora.weights]));
      if (lora.dropout) adapters.back().lora.dropout = lora.dropout;
    } else if (!lora.targets.empty()) {
      adapters.push_back({module, lora});
    }
  };
  for (const auto& [encoder, section] : options.encoders) add(encoder, section.lora);
  add(kDecoder, options.llm.lora);
  return adapters;
}

/// Opens a language model, and the encoders of the deck's sections.
std::unique_ptr<WeightsSource> open_parts(const Options& options, OpenModel open) {
  std::vector<ComposedPart> parts;
  for (const auto& [encoder, section] : options.encoders)
    if (!section.weights.empty())
      parts.push_back({encoder, open_model(section.weights, open), section.placeholder,
                       section.projector, section.feature_layer, section.feature_norm});
  parts.push_back({kDecoder, open_model(options.llm.weights, open)});
  return compose_source(std::move(parts), static_cast<uint64_t>(options.run.seed));
}

/// Opens the modules of a new run's weights that the deck names.
std::unique_ptr<ModelSource> open_initial_weights(const Options& options, OpenModel open) {
  const ModelOptions& model = options.model;
  LoadOptions loading{.strict = model.strict,
                      .seed = static_cast<uint64_t>(options.run.seed),
                      .config_path = model.config};
  if (model.load_modules != ModelOptions{}.load_modules) loading.modules = model.load_modules;
  loading.adapters = [&](const ModelSpec& of) { return adapters_of(options, of); };
  if (!options.llm.weights.empty()) {
    loading.strict = false;  // no part has projectors; other missing tensors were refused
    return std::make_unique<ModelSource>(open_parts(options, open), "", loading);
  }
  return std::make_unique<ModelSource>(
      model.weights.empty() ? nullptr : open_model(model.weights, open),
      model.config.empty() ? "" : read_named_config(model.config), loading);
}

std::string read_profile(const CommandLine& line, const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  if (path.empty() || !line.profile.empty()) return "";
  try {
    return read_text(path, kMaxBytes);
  } catch (const WeightsError& error) {
    throw DeckError("mesh.profile: " + std::string(error.what()) +
                    "; write it with zea --profile, or leave mesh.profile empty");
  }
}

}  // namespace

Start read_start(const CommandLine& line, int ranks,
                 const std::optional<ResolvedCheckpoint>& restart,
                 const std::function<void(const Options&)>& reader) {
  Start start;
  std::string restarted;
  if (!line.restart.empty()) {
    const ResolvedCheckpoint found = restart ? *restart : resolve_checkpoint(line.restart);
    start.note = found.note;
    start.checkpoint = open_state(found.path);
    restarted = run_of_checkpoint(found.path);
  }
  start.options = read_options(line, start.checkpoint.get(), ranks);
  if (reader) reader(start.options);
  if (start.checkpoint) {
    start.resumed = deck_of(*start.checkpoint);
    keep_weights(line, start.options, *start.resumed, *start.checkpoint);
    start.config_json = start.checkpoint->config_json();
  } else {
    start.weights =
        open_initial_weights(start.options, line.plan_only ? open_for_plan : open_weights);
    start.config_json = start.weights->config_json();
  }
  start.profile = read_profile(line, start.options.mesh.profile);
  start.directory = choose_directory(line, start.options, restarted);
  // The path goes into every checkpoint.
  if (start.options.run.mode == RunMode::Train && !is_utf8(start.directory))
    throw DeckError("the run directory " + printable(start.directory) +
                    " is not UTF-8; choose another with -d");
  start.options.run.directory = start.directory;  // so that the echoed deck says where the run is
  if (start.checkpoint && start.options.run.mode == RunMode::Train) {
    check_same_batches(start.options, *start.resumed, *start.checkpoint);
    const std::string schedule =
        describe_new_schedule(start.options, *start.resumed, start.checkpoint->position().step);
    if (!schedule.empty()) start.note += (start.note.empty() ? "" : "\n") + schedule;
  }
  return start;
}

Start read_check(const CommandLine& line) {
  Start start;
  std::string restarted;
  if (line.deck.empty() && line.restart.empty()) {
    // The required keys of a deck are not used.
    start.options = parse_deck("[model]\nweights = \"none\"\n[data]\ntrain = \"none\"\n",
                               "the command line", line.overrides);
    restarted = ".";
  } else {
    if (!line.restart.empty()) {
      const std::string path = resolve_checkpoint(line.restart, {}).path;
      start.checkpoint = open_state(path);
      restarted = run_of_checkpoint(path);
    }
    start.options = read_options(line, start.checkpoint.get(), 1);
  }
  start.directory = choose_directory(line, start.options, restarted);
  return start;
}

}  // namespace zea
