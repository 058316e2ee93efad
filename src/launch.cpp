// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

#include "build_text.hpp"
#include "start.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/comm/node_memory.hpp"
#include "zea/comm/recorded_collectives.hpp"
#include "zea/deck/deck.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/kernels/flat_kernels.hpp"
#include "zea/parallel/device.hpp"
#include "zea/parallel/tensor_bytes.hpp"
#include "zea/plan/describe_pipeline.hpp"
#include "zea/plan/describe_ranks.hpp"
#include "zea/train/profile.hpp"
#include "zea/train/run_directory.hpp"
#include "zea/train/trainer.hpp"
#include "zea/train/training_data.hpp"
#include "zea/train/watchdog.hpp"

namespace zea {
namespace {

/// A new run does not mix its checkpoints with those of an earlier one.
void check_no_checkpoints(const std::string& directory) {
  const std::vector<CheckpointEntry> there = list_checkpoints(directory + "/checkpoints");
  if (!there.empty())
    throw DeckError("the run directory " + directory +
                    " holds checkpoints of an earlier run (the newest is " + there.back().path +
                    "); go on with -r " + directory + ", or choose another directory with -d");
}

/// --profile: a file of measured costs.
std::string profile(const CommandLine& line) {
  const KernelRuntime kernels;
  const Start start = read_start(line, 1);
  const Profile measured = profile_units(start.options, start.config_json);
  write_text_durably(line.profile, measured.json);
  return measured.table + "written to " + line.profile + ", for mesh.profile\n";
}

/// -h, -c, --version, --profile and -n: text on the terminal.
ExitCode answer(const CommandLine& line) {
  std::string text;
  if (line.show_help)
    text = help_text();
  else if (line.show_version)
    text = version_text();
  else if (line.show_build)
    text = build_text();
  else if (!line.profile.empty())
    text = profile(line);
  else {
    const int ranks = std::max(1, line.ranks);
    const Start start = read_start(line, ranks);
    const Plan plan = make_plan(start.options, start.config_json, ranks, start.profile);
    const RankOrder order =
        order_ranks(plan.mesh, even_nodes(ranks, line.ranks_per_node), plan.options.mesh.order);
    text = echo_deck(start.options) + "\n" + describe(plan) + describe_ranks(plan, order) +
           list_passes(plan);
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

/// Thrown by all ranks when what they read of a checkpoint is damaged.
struct UnreadableCheckpoint : WeightsError {
  UnreadableCheckpoint(std::string checkpoint, const std::string& message)
      : WeightsError(message), path(std::move(checkpoint)) {}
  std::string path;
};

TrainPosition resume(Engine& engine, Collectives& control, const StateSource& checkpoint) {
  try {
    return read_checkpoint(engine, control, checkpoint);
  } catch (const WeightsError& error) {
    throw UnreadableCheckpoint(checkpoint.describe(), error.what());
  }
}

/// A run on ranks: everything is made here, in order, and handed to the loop.
ExitCode run_from(const CommandLine& line, World& world, TensorBytes& tensor_bytes,
                  const std::vector<DamagedCheckpoint>& damaged, const GiveUp& give_up) {
  Communicator ranks = world.communicator();
  Start start;
  agree(*make_mpi_collectives(ranks), [&] { start = read_start(line, world.size(), damaged); });
  const Plan plan = make_plan(start.options, start.config_json, world.size(), start.profile);
  const RankOrder order = order_ranks(plan.mesh, world.node_of_rank(), plan.options.mesh.order);
  // From here on this rank is the logical one of its place; nothing below knows another number.
  if (!order.is_identity()) ranks = ranks.reordered(order.logical_of_world[world.rank()], "ranks");
  // What each rank of this node is doing, for the watchdogs of all of them.
  const NodeMemory records =
      NodeMemory::build(ranks, static_cast<int64_t>(ActionRecord::memory_bytes()));
  ActionRecord record(records.own());
  const auto real_control = make_mpi_collectives(ranks);
  const auto control = make_recorded_collectives(*real_control, record, "control");
  const bool is_root = ranks.rank() == 0;
  // From here on signals are requests, and the wall limit runs: loading may take long.
  std::optional<StopRequest> stop;
  if (start.options.run.mode == "train") stop.emplace(start.directory, is_root, line.wall_seconds);
  at::Device device = at::kCPU;
  agree(*control, [&] {
    device = open_device(start.options.run.device, world.local_rank(), world.local_size());
  });
  at::set_num_threads(static_cast<int>(start.options.run.threads));

  std::optional<RunDirectory> directory;
  agree_on_root(*control, [&] {
    directory.emplace(start.directory);
    if (start.options.run.mode != "train") return;
    const std::string checkpoints = start.directory + "/checkpoints";
    if (!start.checkpoint) check_no_checkpoints(start.directory);
    directory->write_deck(echo_deck(start.options));
    remove_unfinished(checkpoints);
    if (start.checkpoint) set_aside_later(checkpoints, start.checkpoint->position().step);
  });
  Log log(is_root, start.directory + "/log.txt");
  MetricsFile metrics(is_root ? start.directory + "/metrics.jsonl" : "");
  for (const std::string& note :
       {directory ? directory->note() : "", start.note, start.weights ? start.weights->note() : ""})
    if (!note.empty()) log.warn(note);
  log.info(describe(plan) + describe_ranks(plan, order));

  std::unique_ptr<Dataset> train, eval;
  agree(*control, [&] {
    if (start.options.run.mode == "train") train = open_checked(start.options.data.train, plan);
    eval = open_checked_eval(plan);
  });
  Mesh mesh(ranks, plan.mesh, collectives_of(device), &record);
  Engine engine(plan, mesh, device);
  if (const std::string note = mesh.note(); !note.empty()) log.warn(note);
  TrainPosition position;
  if (start.checkpoint) {
    position = resume(engine, *control, *start.checkpoint);
  } else {
    agree(*control, [&] { load_weights(engine, *start.weights); });
    if (start.options.model.sync_module_states) engine.broadcast_weights();
  }
  if (start.checkpoint) log.info("resumed " + start.checkpoint->describe());
  std::optional<Watchdog> watchdog;
  const auto start_watchdog = [&] {
    const double deadline = start.options.run.watchdog_seconds;
    if (deadline > 0)
      agree(*control, [&] {
        watchdog.emplace(records, record,
                         WatchdogOptions{deadline, start.directory, ranks.size(), give_up});
      });
  };
  if (start.options.run.mode == "evaluate") {
    start_watchdog();
    evaluate_and_report(engine, *control, *eval, loading_on(plan, mesh.rank()), log, metrics,
                        {.step = position.step, .directory = start.directory});
    return ExitCode::Done;
  }

  if (is_root && start.options.log.tensorboard)
    metrics.write_events(start.directory + "/tensorboard", position.step + 1);
  Optimizer optimizer(engine);
  Trainer trainer({.engine = engine,
                   .optimizer = optimizer,
                   .control = *control,
                   .train = *train,
                   .eval = eval.get(),
                   .loading = loading_on(plan, mesh.rank()),
                   .stop = *stop,
                   .log = log,
                   .metrics = metrics,
                   .tensor_bytes = tensor_bytes,
                   .run_directory = start.directory,
                   .run_id = start.checkpoint ? start.checkpoint->run_id() : make_run_id(*control),
                   .deck = echo_deck(start.options)},
                  position);
  start_watchdog();
  const ExitCode code = trainer.run();
  watchdog.reset();  // before what the trainer has used goes
  return code;
}

/// Damage in the data of a checkpoint shows when it is read: a run then goes on from the newest one
/// that is whole.
ExitCode run(const CommandLine& line, World& world, const GiveUp& give_up) {
  const KernelRuntime kernels;
  TensorBytes tensor_bytes;  // outlives all tensors
  std::vector<DamagedCheckpoint> damaged;
  for (;;) {
    try {
      return run_from(line, world, tensor_bytes, damaged, give_up);
    } catch (const UnreadableCheckpoint& error) {
      if (names_checkpoint(line.restart)) throw;
      damaged.push_back({error.path, error.what()});
    }
  }
}

}  // namespace

bool answers_without_ranks(int argc, const char* const* argv) {
  try {
    const CommandLine line = parse_command_line(argc, argv);
    return line.show_help || line.show_version || line.show_build || line.plan_only ||
           !line.profile.empty();
  } catch (const DeckError&) {
    return false;  // told by the root rank
  }
}

ExitCode launch(int argc, const char* const* argv, World* world, const GiveUp& give_up) {
  const CommandLine line = parse_command_line(argc, argv);
  return world ? run(line, *world, give_up) : answer(line);
}

}  // namespace zea
