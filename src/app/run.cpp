// SPDX-License-Identifier: Apache-2.0
#include "app/run.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "app/answer.hpp"
#include "app/auto_layout.hpp"
#include "app/job_info.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"
#include "comm/node_cores.hpp"
#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "estimate/describe.hpp"
#include "estimate/fitting_plan.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/peak_tflops.hpp"
#include "files/durable_file.hpp"
#include "io/model_files.hpp"
#include "kernels/flat_kernels.hpp"
#include "library/start.hpp"
#include "parallel/device.hpp"
#include "parallel/device_memory.hpp"
#include "train/evaluate.hpp"
#include "train/reserve_memory.hpp"
#include "train/run_directory.hpp"
#include "train/trainer.hpp"
#include "train/training_data.hpp"
#include "watch/unanswered.hpp"

namespace zea {
namespace {

/// Limit for reading the deck and opening the files that it names, before run.watchdog_seconds
/// is known.
constexpr double kStartSeconds = 1800;

/// A new run does not mix its checkpoints with those of an earlier one.
void check_no_checkpoints(const std::string& directory) {
  const std::vector<CheckpointEntry> there = list_checkpoints(directory + "/checkpoints");
  if (!there.empty())
    throw DeckError("the run directory " + directory +
                    " holds checkpoints of an earlier run (the newest is " + there.back().path +
                    "); go on with -r " + directory + ", or choose another directory with -d");
}

/// A run that resumes in another directory must not mix checkpoints either: it would remove
/// those that are older than its own.
void check_own_checkpoints(const std::string& directory, const StateSource& from) {
  for (const CheckpointEntry& entry : list_checkpoints(directory + "/checkpoints"))
    if (const std::optional<std::string> run = run_id_of(entry.path); run && *run != from.run_id())
      throw DeckError("the run directory " + directory +
                      " holds checkpoints of another run than that of " + from.describe() +
                      " (one is " + entry.path + "); choose another directory with -d");
}

std::string make_run_id(Collectives& control) {
  uint64_t id = 0;
  if (control.rank() == 0)
    id = (static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
  control.broadcast(&id, 1, DType::Int64, 0).wait();
  return formatted("%016lx", static_cast<unsigned long>(id));
}

/// Thrown by all ranks when data of a checkpoint is damaged.
struct UnreadableCheckpoint : WeightsError {
  UnreadableCheckpoint(std::string checkpoint, const std::string& message)
      : WeightsError(message), path(std::move(checkpoint)) {}
  std::string path;
};

TrainPosition resume(Engine& engine, Collectives& control, const StateSource& checkpoint,
                     int cores) {
  try {
    return read_checkpoint(engine, control, checkpoint, cores);
  } catch (const WeightsError& error) {
    throw UnreadableCheckpoint(checkpoint.describe(), error.what());
  }
}

/// Returns the peak TFLOP/s of all ranks together; 0: that of one is not known. Collective.
double peak_of_ranks(const Plan& plan, const std::string& gpu, WatchedRanks& ranks, Log& log) {
  const double own = peak_tflops(plan, gpu);
  double all = own, least = own;
  ranks.control->all_reduce(&all, 1, DType::Float64, ReduceOp::Sum).wait();
  ranks.control->all_reduce(&least, 1, DType::Float64, ReduceOp::Min).wait();
  if (least == 0) return 0;
  log.info(formatted("MFU is of %.4g TFLOP/s of %d ranks (", all, plan.world_size()) +
           (plan.options.run.peak_tflops > 0 ? "run.peak_tflops" : gpu) + ")");
  return all;
}

/// Copies tokenizer and processor files, for exports on machines without the source of the
/// weights.
void keep_companions(const Start& start) {
  if (start.weights)
    return write_companions(*start.weights, start.directory + "/" + kCompanionFolder);
  if (start.checkpoint->companions().empty()) return;
  const std::string run = run_of_checkpoint(start.checkpoint->describe());
  std::error_code not_there;
  if (!std::filesystem::equivalent(run, start.directory, not_there))
    write_companions(*start.checkpoint, start.directory + "/" + kCompanionFolder);
}

/// The root rank makes and locks the directory; no other run writes there from then on.
void open_directory(const Start& start, WatchedRanks& ranks,
                    std::optional<RunDirectory>& directory) {
  const ActionRecord::Action action(ranks.record, "open the run directory");
  agree_on_root(*ranks.control, [&] {
    directory.emplace(start.directory);
    if (ranks.watchdog) {
      ranks.watchdog->clear_directory();
      // At once: a rank that hangs from here on keeps all from agreeing, and its report
      // needs the directory.
      ranks.watchdog->use_directory();
    }
    if (start.options.run.mode != RunMode::Train) return;
    if (start.checkpoint)
      check_own_checkpoints(start.directory, *start.checkpoint);
    else
      check_no_checkpoints(start.directory);
    directory->write_deck(echo_deck(start.options));
    keep_companions(start);
    remove_unfinished(start.directory + "/checkpoints", [&] { ranks.record.moved(); });
  });
  if (!ranks.watchdog) return;
  agree(*ranks.control, [&] {
    if (!ranks.is_root()) ranks.watchdog->use_directory();
  });
}

Log open_log(const Start& start, WatchedRanks& ranks) {
  const ActionRecord::Action action(ranks.record, "open the log");
  return {ranks.is_root(), start.directory + "/log.txt"};
}

/// Looks for 5 s, since file systems may show a node's new file to other nodes with a delay.
bool sees_first_node(const Watchdog& watchdog) {
  constexpr int kLooks = 20;
  for (int look = 0; look < kLooks; ++look) {
    if (watchdog.sees_first_node()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  return false;
}

/// Returns a note if nodes do not see each other's files: they cannot exchange heartbeats, nor
/// write a checkpoint together, so a run that trains throws StorageError. Collective.
std::string note_of_directory(const Start& start, WatchedRanks& ranks) {
  int64_t cut_off = ranks.watchdog && !sees_first_node(*ranks.watchdog);
  ranks.control->all_reduce(&cut_off, 1, DType::Int64, ReduceOp::Sum).wait();
  if (cut_off == 0) return "";
  const std::string found = "the run directory " + start.directory +
                            " is not the same on all nodes: " + std::to_string(cut_off) + " of " +
                            std::to_string(ranks.records.nodes().size()) +
                            " nodes do not see what rank 0 writes there";
  if (start.options.run.mode == RunMode::Train)
    throw StorageError(found +
                       ", and a checkpoint has a file of every rank; name a folder that all nodes "
                       "share (-d)");
  return found +
         ", so each node judges alone whether the run hangs (run.watchdog_seconds); name a folder "
         "that all nodes share (-d)";
}

void warn_of_start(const Start& start, WatchedRanks& ranks,
                   const std::optional<RunDirectory>& directory, Log& log) {
  for (const std::string& note :
       {directory ? directory->note() : "", note_of_directory(start, ranks), start.note,
        start.weights ? start.weights->note() : "",
        start.checkpoint ? start.checkpoint->note() : ""})
    if (!note.empty()) log.warn(note);
}

struct RunData {
  std::unique_ptr<Dataset> train, eval;  ///< null where there is none
};

RunData open_data(const Start& start, const Plan& plan, WatchedRanks& ranks, Log& log) {
  const ActionRecord::Action action(ranks.record, "open the data");
  RunData data;
  const SharedOpening opening = shared_by(*ranks.control, ranks.record);
  if (plan.options.run.mode == RunMode::Train)
    data.train = open_checked(plan.options.data.train, plan, opening);
  data.eval = open_checked_eval(plan, opening);
  for (const std::string& note : notes_on_data(start, data.train.get(), data.eval.get(), opening))
    log.warn(note);
  return data;
}

/// Describes the samples of the first steps, on the root rank. Collective.
std::string describe_samples(const Start& start, const Plan& plan, const RankOrder& order,
                             const RunData& data, WatchedRanks& ranks) {
  const ActionRecord::Action action(ranks.record, "plan the first steps");
  std::string text;
  agree_on_root(*ranks.control, [&] {
    const StepSamples samples = first_samples(start, plan, data.train.get(), data.eval.get());
    text = describe_ranks(plan, order, samples) +
           describe_steps(plan, samples, facts_of(plan, samples));
  });
  return text;
}

/// Loads the values that the run begins with. Nothing else uses `cores` yet, so run.threads,
/// which is 1 where a GPU computes, does not limit it.
TrainPosition load(const Start& start, WatchedRanks& ranks, Engine& engine, int cores, Log& log) {
  const ActionRecord::Action action(ranks.record, "load the weights");
  if (start.checkpoint) {
    const TrainPosition position = resume(engine, *ranks.control, *start.checkpoint, cores);
    log.info("resumed " + start.checkpoint->describe());
    return position;
  }
  if (start.options.run.mode == RunMode::Train)
    if (const std::string rounded = describe_rounded(engine.plan(), *start.weights);
        !rounded.empty())
      log.info(rounded);
  agree(*ranks.control, [&] { load_weights(engine, *start.weights, cores); });
  if (start.options.model.sync_module_states) engine.broadcast_weights();
  return {};
}

/// Returns about the most microbatches that a replica has in a step: those of `step`, and one more,
/// since packed samples do not always fill as many rows.
int64_t microbatches_near(const Plan& plan, const Dataset& dataset, int64_t step) {
  Sampler sampler = make_sampler(plan.options, dataset);
  const StepPlan near = plan.step_plan(step, sampler.global_batch(step), dataset.index());
  return std::min(most_microbatches(plan), std::ssize(near.replicas.front()) + 1);
}

/// Sets aside checkpoints of later steps, once that of the restart was read: the run writes
/// them anew.
void clear_later_steps(const Start& start, const TrainPosition& position, WatchedRanks& ranks,
                       Log& log) {
  std::vector<std::string> aside;
  agree_on_root(*ranks.control,
                [&] { aside = set_aside_later(start.directory + "/checkpoints", position.step); });
  for (const std::string& path : aside)
    log.warn("a later checkpoint is set aside, since the run goes on before it: " + path);
}

/// Reads or computes cached features.
FeatureCaches keep_features(const Start& start, WatchedRanks& ranks, Engine& engine,
                            const Dataset& train, const LoaderOptions& loading, Log& log) {
  const ActionRecord::Action action(ranks.record, "cache features");
  return cache_features({.engine = engine,
                         .control = *ranks.control,
                         .train = train,
                         .loading = loading,
                         .weights = start.source(),
                         .log = log});
}

/// Writes what this start is into the run directory. Returns it on the root rank. Collective.
std::string keep_job_info(const JobParts& parts, WatchedRanks& ranks) {
  const ActionRecord::Action action(ranks.record, "write job_info.json");
  std::string entry = describe_job(parts, *ranks.control);
  agree_on_root(*ranks.control, [&] { add_start(parts.start.directory, entry); });
  return entry;
}

/// State that all starts of one run share: later ones pass over damaged checkpoints.
struct Starts {
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  std::vector<DamagedCheckpoint> damaged;
  std::optional<StopSignals> signals;  ///< from the first start on: a request holds for all
};

/// Returns the checkpoint that -r names, as the root rank sees it: other ranks may see less of
/// a shared file system.
std::optional<ResolvedCheckpoint> find_restart(const CommandLine& line, const Starts& starts,
                                               Collectives& control) {
  if (line.restart.empty()) return std::nullopt;
  ResolvedCheckpoint found;
  agree_on_root(control, [&] { found = resolve_checkpoint(line.restart, starts.damaged); });
  return ResolvedCheckpoint{.path = all_gather_texts(control, found.path)[0],
                            .note = all_gather_texts(control, found.note)[0]};
}

/// For evaluation-only runs: returns whether to leave, with twice the time of the last batch
/// before the wall limit.
std::function<bool()> leaves_between_batches(StopRequest& stop, Log& log) {
  return [&stop, &log, last = stop.elapsed_seconds()]() mutable {
    const double now = stop.elapsed_seconds();
    const bool leaves = stop.poll(2 * (now - std::exchange(last, now))).leave > 0;
    if (leaves && !stop.note().empty()) log.info(stop.note());
    return leaves;
  };
}

/// Makes the choice of mesh.layout = "auto" on the root rank, whose data decides it, for all ranks.
/// Returns the text about it there. Collective.
std::string choose_layout(Start& start, const World& world, Collectives& control) {
  if (start.options.mesh.layout != LayoutSource::Auto) return "";
  std::string text, chosen;
  agree_on_root(control, [&] {
    RunData data;  // which the samples read
    text = choose_layout(start, {.ranks = world.size(), .per_node = world.local_size()},
                         [&](const Plan& plan) {
                           if (plan.options.run.mode == RunMode::Train)
                             data.train = open_checked(plan.options.data.train, plan);
                           data.eval = open_checked_eval(plan);
                           return first_samples(start, plan, data.train.get(), data.eval.get());
                         });
    chosen = echo_deck(start.options);
  });
  chosen = all_gather_texts(control, chosen)[0];
  if (world.rank() != 0) start.options = parse_deck(chosen, "the chosen layout", {});
  return text;
}

/// Makes everything in order and hands it to the loop.
ExitCode run_from(const CommandLine& line, Job& job, TensorBytes& tensor_bytes, Starts& starts) {
  const World& world = job.world;
  std::optional<std::jthread> start_limit = limit_start(kStartSeconds, job.abort_job);
  const auto heed_options = [&start_limit](const Options& options) {
    if (options.run.watchdog_seconds == 0) start_limit.reset();
  };
  Communicator all = world.communicator();
  Start start;
  const std::unique_ptr<Collectives> of_all = make_mpi_collectives(all);
  const std::optional<ResolvedCheckpoint> restart = find_restart(line, starts, *of_all);
  agree(*of_all, [&] { start = read_start(line, world.size(), restart, heed_options); });
  const std::string chosen = choose_layout(start, world, *of_all);
  const Plan plan =
      make_fitting_plan(start.options, start.config_json, world.size(), start.profile);
  const RankOrder order = order_ranks(plan.mesh, world.node_of_rank(), plan.options.mesh.order);
  // From here on this rank has the number of its place in the plan.
  if (!order.is_identity()) all = all.reordered(order.logical_of_world[world.rank()], "ranks");
  job.rank = all.rank();
  WatchedRanks ranks(std::move(all), job, start);
  start_limit.reset();
  // From here on signals are requests, and the wall limit runs: loading may take long.
  if (!starts.signals) starts.signals.emplace();
  StopRequest stop(start.directory, ranks.is_root(), line.wall_seconds, starts.begin);
  const auto [device, gpu] = open_device_of(start, ranks, world);
  at::set_num_threads(static_cast<int>(start.options.run.threads));

  std::optional<RunDirectory> directory;
  open_directory(start, ranks, directory);
  Log log = open_log(start, ranks);
  MetricsFile metrics(ranks.is_root() ? start.directory + "/metrics.jsonl" : "");
  warn_of_start(start, ranks, directory, log);
  if (!chosen.empty()) log.info(chosen);
  log.info(describe(plan));

  const RunData data = open_data(start, plan, ranks, log);
  log.info(describe_samples(start, plan, order, data, ranks));
  Mesh mesh(ranks.ranks, plan.mesh, collectives_of(device), &ranks.record,
            start.options.run.collective_checksums);
  PassHashes hashes;
  const bool replays = start.options.run.replay_every > 0;
  Engine engine(plan, mesh, device, replays ? hashes.observed(run_unit) : run_unit,
                replays ? hashes.gradient_reader() : ReadGradient());
  NodeNote of_node{world.node_of_rank()[world.rank()], host_name(), mesh.note()};
  if (const auto note = note_of_nodes(*ranks.control, of_node); !note.empty()) log.warn(note);
  const double cores = count_cores(ranks, world);
  const TrainPosition position = load(start, ranks, engine, static_cast<int>(cores), log);
  const LoaderOptions loading = loading_here(plan, job.rank, cores);
  if (start.options.run.mode != RunMode::Train) {
    const EvaluationOutput output{.step = position.step,
                                  .seconds = stop.elapsed_seconds(),
                                  .directory = start.directory,
                                  .is_exit_requested = leaves_between_batches(stop, log),
                                  .counts_part = true};
    const bool is_whole =
        evaluate_and_report(engine, *ranks.control, *data.eval, loading, log, metrics, output);
    return is_whole ? ExitCode::Done : ExitCode::Requeue;
  }

  if (start.checkpoint) clear_later_steps(start, position, ranks, log);
  const FeatureCaches features = keep_features(start, ranks, engine, *data.train, loading, log);
  const std::string job_info =
      keep_job_info({start, plan, *data.train, data.eval.get(), gpu, position.step}, ranks);
  if (ranks.is_root() && start.options.log.tensorboard)
    metrics.write_events(start.directory + "/tensorboard", position.step + 1);
  Optimizer optimizer(engine);
  if (device.is_cuda()) {
    of_node.text = reserve_for_steps(engine, microbatches_near(plan, *data.train, position.step));
    if (const auto note = note_of_nodes(*ranks.control, of_node); !note.empty()) log.warn(note);
  }
  return Trainer(
             {.engine = engine,
              .optimizer = optimizer,
              .control = *ranks.control,
              .train = *data.train,
              .eval = data.eval.get(),
              .loading = loading,
              .hashes = replays ? &hashes : nullptr,
              .features = features,
              .stop = stop,
              .log = log,
              .metrics = metrics,
              .tensor_bytes = tensor_bytes,
              .peak_tflops = peak_of_ranks(plan, gpu, ranks, log),
              .run_directory = start.directory,
              .run_id = start.checkpoint ? start.checkpoint->run_id() : make_run_id(*ranks.control),
              .deck = echo_deck(start.options),
              .job_info = job_info,
              .weights = &start.source(),
              .resumed = start.resumed ? &*start.resumed : nullptr,
              .last_step = line.steps},
             position)
      .run();
}

/// Returns the host name of each address of the run's nodes. Collective.
std::map<std::string, std::string> hosts_by_address(Collectives& control,
                                                    const NodeMemory& records) {
  std::map<std::string, std::string> hosts;
  if (records.nodes().size() == 1) return hosts;
  const bool is_first = records.own() == records.of(0);
  const std::string own = is_first ? host_name() + " " + join(own_addresses(), " ") : "";
  for (const std::string& text : all_gather_texts(control, own)) {
    std::istringstream words(text);
    std::string host;
    words >> host;
    for (std::string address; words >> address;) hosts[address] = host;
  }
  return hosts;
}

}  // namespace

WatchedRanks::WatchedRanks(Communicator of_plan, const Job& job, const Start& start)
    : ranks(std::move(of_plan)),
      records(NodeMemory::build(ranks, static_cast<int64_t>(ActionRecord::memory_bytes()),
                                job.world.node_of_rank()[job.world.rank()])),
      record(records.own()),
      real_control(make_mpi_collectives(ranks)),
      control(make_recorded_collectives(*real_control, record, "control")) {
  const double deadline = start.options.run.watchdog_seconds;
  if (deadline > 0)
    watchdog.emplace(records, record,
                     WatchdogOptions{deadline, start.directory, ranks.size(), job.abort_job,
                                     job.warn, hosts_by_address(*real_control, records)});
}

OpenedDevice open_device_of(const Start& start, WatchedRanks& ranks, const World& world) {
  const ActionRecord::Action action(ranks.record, "open the device");
  const RunOptions& run = start.options.run;
  OpenedDevice opened;
  if (run.device == DeviceKind::Cpu) return opened;
  std::vector<VisibleGpu> own;
  agree(*ranks.control, [&] { own = find_gpus(run.device); });
  const std::vector<std::vector<VisibleGpu>> seen = gpus_on_node(world, own);
  agree(*ranks.control, [&] { opened.device = open_device(run, seen, world.local_rank()); });
  opened.gpu = own[static_cast<size_t>(opened.device.index())].name;
  return opened;
}

double count_cores(WatchedRanks& ranks, const World& world) {
  const ActionRecord::Action action(ranks.record, "count the cores");
  return cores_per_rank(world);
}

LoaderOptions loading_here(const Plan& plan, int rank, double cores) {
  LoaderOptions loading = loading_on(plan, rank);
  if (plan.options.data.decoding_threads == 0 && !plan.model.encoders.empty())
    loading.threads = threads_on(cores, plan.options);
  return loading;
}

/// Damaged data of a checkpoint shows when it is read: the run then resumes from the newest
/// whole one.
ExitCode run(const CommandLine& line, Job& job) {
  const KernelRuntime kernels;
  TensorBytes tensor_bytes;  // outlives all tensors
  Starts starts;
  for (;;) {
    try {
      return run_from(line, job, tensor_bytes, starts);
    } catch (const UnreadableCheckpoint& error) {
      if (names_checkpoint(line.restart)) throw;
      starts.damaged.push_back({error.path, error.what()});
    } catch (const c10::OutOfMemoryError& error) {
      throw StorageError(std::string("out of memory on the device: ") +
                         error.what_without_backtrace() +
                         "; take fewer tokens at once (data.row_tokens), or more ranks");
    }
  }
}

}  // namespace zea
