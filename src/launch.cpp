// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/deck/command_line.hpp"
#include "zea/deck/deck.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/weights_file.hpp"
#include "zea/kernels/flat_kernels.hpp"
#include "zea/train/run_directory.hpp"
#include "zea/train/trainer.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// What a run starts from: the deck, the weights or the checkpoint, and where it writes.
struct Start {
  Options options;
  std::unique_ptr<WeightsSource> weights;        ///< null with a checkpoint
  std::unique_ptr<CheckpointSource> checkpoint;  ///< null for a new run
  std::string config_json;
  std::string directory;
  std::string note;  ///< of how the checkpoint was found
};

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw WeightsError("cannot read the model's config " + path);
  return text.str();
}

/// runs/<deck's name> unless the deck or the command line say otherwise; a restart goes on where it
/// was.
std::string choose_directory(const CommandLine& line, const Options& options,
                             const std::string& restarted) {
  if (!line.directory.empty()) return line.directory;
  const bool is_overridden =
      std::any_of(line.overrides.begin(), line.overrides.end(),
                  [](const std::string& text) { return text.starts_with("run.directory="); });
  if (!restarted.empty() && !is_overridden) return restarted;
  if (!options.run.directory.empty()) return options.run.directory;
  return (fs::path("runs") / fs::path(line.deck).stem()).string();
}

/// The run directory of a checkpoint in its checkpoints/; empty for one that lies elsewhere.
std::string run_of_checkpoint(const std::string& checkpoint) {
  const fs::path parent = fs::canonical(checkpoint).parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path().string() : "";
}

/// A run goes on with the batches that it would have had: its position counts them.
void check_same_batches(const Options& now, const CheckpointSource& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.position.step == 0 || now.run.mode != "train") return;
  const Options then = parse_deck(manifest.deck, "the deck in " + checkpoint.describe(), {});
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
}

/// A new run does not mix its checkpoints with those of an earlier one.
void check_no_checkpoints(const std::string& directory) {
  const std::vector<CheckpointEntry> there = list_checkpoints(directory + "/checkpoints");
  if (!there.empty())
    throw DeckError("the run directory " + directory +
                    " holds checkpoints of an earlier run (the newest is " + there.back().path +
                    "); go on with -r " + directory + ", or choose another directory with -d");
}

/// The faults of a deck and, as far as it can be planned, those of its plan: all come out at once.
[[noreturn]] void throw_all_faults(const FaultyDeck& faulty, int ranks) {
  std::string faults = faulty.what();
  try {
    const std::string& weights = faulty.options.model.weights;
    const std::string config = weights.empty() ? read_text(faulty.options.model.config)
                                               : open_weights_file(weights)->config_json();
    make_plan(faulty.options, config, ranks);
  } catch (const PlanError& error) {
    faults += std::string("\n") + error.what();
  } catch (const Error&) {
    // Weights that cannot be read are told when the deck is right.
  }
  throw DeckError(faults);
}

Options read_options(const CommandLine& line, const CheckpointSource* checkpoint, int ranks) {
  try {
    if (!line.deck.empty()) return read_deck(line.deck, line.overrides);
    if (checkpoint)
      return parse_deck(checkpoint->manifest().deck, "the deck in " + checkpoint->describe(),
                        line.overrides);
  } catch (const FaultyDeck& faulty) {
    throw_all_faults(faulty, ranks);
  }
  throw DeckError("no deck: give one with -i, or a run to go on with -r; zea -h lists all options");
}

Start read_start(const CommandLine& line, int ranks) {
  Start start;
  std::string restarted;
  if (!line.restart.empty()) {
    const ResolvedCheckpoint found = resolve_checkpoint(line.restart);
    start.note = found.note;
    start.checkpoint = std::make_unique<CheckpointSource>(found.path);
    restarted = run_of_checkpoint(found.path);
  }
  start.options = read_options(line, start.checkpoint.get(), ranks);
  if (start.checkpoint) {
    start.config_json = start.checkpoint->config_json();
  } else if (!start.options.model.weights.empty()) {
    start.weights = open_weights_file(start.options.model.weights);
    start.config_json = start.weights->config_json();
  } else if (line.plan_only && !start.options.model.config.empty()) {
    start.config_json = read_text(start.options.model.config);
  } else {
    throw DeckError("model.weights is empty: name a weights file, as zea-import makes it" +
                    std::string(line.plan_only ? ", or a config.json in model.config" : ""));
  }
  start.directory = choose_directory(line, start.options, restarted);
  start.options.run.directory = start.directory;  // so that the echoed deck says where the run is
  if (start.checkpoint) check_same_batches(start.options, *start.checkpoint);
  return start;
}

std::string build_text() {
  return std::string("zea " ZEA_VERSION "\nC++ compiler: ") + __VERSION__ +
         "\nlibtorch: " + ZEA_TORCH_VERSION + "\nMPI: " + ZEA_MPI_VERSION +
         "\nHDF5: " + ZEA_HDF5_VERSION + "\nKokkos: " + ZEA_KOKKOS_VERSION +
         "\nNCCL: " + (has_nccl() ? "yes" : "no") + "\nbuild type: " + ZEA_BUILD_TYPE +
         "\nkernels for: " + ZEA_ISA + "\n";
}

/// -h, -c, --version and -n: text on the terminal.
ExitCode answer(const CommandLine& line) {
  std::string text;
  if (line.show_help)
    text = help_text();
  else if (line.show_version)
    text = "zea " ZEA_VERSION "\n";
  else if (line.show_build)
    text = build_text();
  else {
    const Start start = read_start(line, std::max(1, line.ranks));
    text = echo_deck(start.options) + "\n" +
           describe(make_plan(start.options, start.config_json, std::max(1, line.ranks)));
  }
  std::fputs(text.c_str(), stdout);
  return ExitCode::Done;
}

std::string make_run_id(Collectives& control) {
  uint64_t id = 0;
  if (control.rank() == 0)
    id = (static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
  control.broadcast(&id, 1, DType::Int64, 0).wait();
  char text[20];
  std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(id));
  return text;
}

LoaderOptions loading_of(const Plan& plan) {
  const DataOptions& data = plan.options.data;
  LoaderOptions loading;
  if (plan.model.vision) loading.image.size = plan.model.vision->image_size;
  loading.image.mean = data.image_mean;
  loading.image.std = data.image_std;
  loading.image.max_pixels = data.max_image_pixels;
  loading.mask_bad_items = data.bad_items == "mask";
  return loading;
}

/// Opens a data set and checks, from its index alone, that the model and the deck can take it.
std::unique_ptr<Dataset> open_checked(const std::string& path, const Plan& plan) {
  if (path.empty()) return nullptr;
  std::unique_ptr<Dataset> dataset = open_dataset(path);
  if (dataset->index().empty()) throw DataError(path + " holds no samples");
  if (dataset->max_token() >= plan.model.text.vocabulary)
    throw DataError(path + " has token id " + std::to_string(dataset->max_token()) +
                    ", outside the model's vocabulary of " +
                    std::to_string(plan.model.text.vocabulary) +
                    "; pack the data with the model's tokenizer");
  for (size_t id = 0; id < dataset->index().size(); ++id) {
    const SampleIndex& sample = dataset->index()[id];
    if (sample.tokens > plan.options.data.row_tokens)
      throw DataError(
          path + ": sample " + std::to_string(id) + " has " + std::to_string(sample.tokens) +
          " tokens, more than data.row_tokens = " + std::to_string(plan.options.data.row_tokens) +
          "; raise data.row_tokens or leave the sample out");
    if (sample.items > 0 && !plan.model.vision)
      throw DataError(path + ": sample " + std::to_string(id) + " has an image, but the model (" +
                      plan.model.family + ") has no vision encoder");
  }
  return dataset;
}

/// A run on ranks: everything is made here, in order, and handed to the loop.
ExitCode run(const CommandLine& line, World& world) {
  const Communicator ranks = world.communicator();
  const auto control = make_mpi_collectives(ranks);
  Start start;
  agree(*control, [&] { start = read_start(line, world.size()); });
  const bool is_root = world.rank() == 0;
  // From here on signals are requests, and the wall limit runs: loading may take long.
  std::optional<StopRequest> stop;
  if (start.options.run.mode == "train") stop.emplace(start.directory, is_root, line.wall_seconds);
  const Plan plan = make_plan(start.options, start.config_json, world.size());
  at::set_num_threads(static_cast<int>(start.options.run.threads));
  const KernelRuntime kernels;

  std::optional<RunDirectory> directory;
  agree_on_root(*control, [&] {
    directory.emplace(start.directory);
    if (start.options.run.mode != "train") return;
    const std::string checkpoints = start.directory + "/checkpoints";
    if (!start.checkpoint) check_no_checkpoints(start.directory);
    directory->write_deck(echo_deck(start.options));
    remove_unfinished(checkpoints);
    if (start.checkpoint) set_aside_later(checkpoints, start.checkpoint->manifest().position.step);
  });
  Log log(is_root, start.directory + "/log.txt");
  const MetricsFile metrics(is_root ? start.directory + "/metrics.jsonl" : "");
  if (directory && !directory->note().empty()) log.warn(directory->note());
  if (!start.note.empty()) log.warn(start.note);
  log.info(describe(plan));

  std::unique_ptr<Dataset> train, eval;
  agree(*control, [&] {
    if (start.options.run.mode == "train") train = open_checked(start.options.data.train, plan);
    eval = open_checked(start.options.data.eval, plan);
  });
  Mesh mesh(ranks, plan.mesh, make_mpi_collectives);
  Engine engine(plan, mesh, at::kCPU);
  TrainPosition position;
  if (start.checkpoint)
    position = read_checkpoint(engine, *control, *start.checkpoint);
  else
    agree(*control, [&] { load_weights(engine, *start.weights); });
  if (start.checkpoint) log.info("resumed " + start.checkpoint->describe());
  if (start.options.run.mode == "evaluate") {
    evaluate_and_report(engine, *control, *eval, loading_of(plan), log, metrics,
                        {.step = position.step, .directory = start.directory});
    return ExitCode::Done;
  }

  Optimizer optimizer(engine);
  Trainer trainer(
      {.engine = engine,
       .optimizer = optimizer,
       .control = *control,
       .train = *train,
       .eval = eval.get(),
       .loading = loading_of(plan),
       .stop = *stop,
       .log = log,
       .metrics = metrics,
       .run_directory = start.directory,
       .run_id = start.checkpoint ? start.checkpoint->manifest().run_id : make_run_id(*control),
       .deck = echo_deck(start.options)},
      position);
  return trainer.run();
}

}  // namespace

bool answers_without_ranks(int argc, const char* const* argv) {
  try {
    const CommandLine line = parse_command_line(argc, argv);
    return line.show_help || line.show_version || line.show_build || line.plan_only;
  } catch (const DeckError&) {
    return false;  // told by the root rank
  }
}

ExitCode launch(int argc, const char* const* argv, World* world) {
  const CommandLine line = parse_command_line(argc, argv);
  return world ? run(line, *world) : answer(line);
}

}  // namespace zea
