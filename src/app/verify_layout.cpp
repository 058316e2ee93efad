// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>
#include <utility>

#include "app/run.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"
#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "estimate/fitting_plan.hpp"
#include "kernels/flat_kernels.hpp"
#include "layout/rank_order.hpp"
#include "parallel/device.hpp"
#include "train/compare_records.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

constexpr double kStartSeconds = 1800;
constexpr int64_t kUsualSteps = 2;

/// Keys that may differ between a layout and its reference.
constexpr const char* kLayoutKeys[] = {"mesh.",
                                       "run.",
                                       "checkpoint.",
                                       "eval.",
                                       "log.",
                                       "data.row_tokens",
                                       "data.rows_per_microbatch",
                                       "data.packing",
                                       "data.balance",
                                       "data.decoding_threads",
                                       "data.eval",
                                       "model.activation_checkpointing",
                                       "model.sync_module_states"};

bool is_of_layout(const std::string& path) {
  if (path == "run.seed" || path == "run.mode" || path == "run.device") return false;
  return std::ranges::any_of(kLayoutKeys, [&](const char* key) { return path.starts_with(key); });
}

/// Throws DeckError where both would not compute the same.
void check_same_run(const Options& layout, const Options& reference) {
  std::map<std::string, std::pair<std::string, std::string>> keys;
  for (const ChangedKey& key : changed_keys(layout)) keys[key.path].first = key.text;
  for (const ChangedKey& key : changed_keys(reference)) keys[key.path].second = key.text;
  for (const auto& [path, texts] : keys)
    if (!is_of_layout(path) && texts.first != texts.second)
      throw DeckError("--against changes " + path + " (" +
                      (texts.second.empty() ? "left out" : texts.second) + ", and " +
                      (texts.first.empty() ? "left out" : texts.first) +
                      " in the layout), so the two would not compute the same; keep it, and change "
                      "keys of [mesh], or how data.* packs samples");
}

/// The deck's options without what a check of its layout does not use.
Options checked_options(Options options, std::string& notes) {
  if (options.run.mode != RunMode::Train)
    throw DeckError("--verify-layout compares training steps, and run.mode = \"" +
                    options.run.mode.name() + "\" has none; set run.mode=train and data.train");
  if (std::exchange(options.run.cuda_graphs, 0) > 0)
    notes += "note: run.cuda_graphs is off for the check: graphs replay what is compared here\n";
  if (std::exchange(options.run.replay_every, 0) > 0)
    notes += "note: run.replay_every is off for the check, which compares every step\n";
  if (!std::exchange(options.data.cache_features, "").empty())
    notes += "note: data.cache_features is off for the check: encoders run in every step\n";
  return options;
}

/// The same model, data and optimizer with every key of [mesh] at its default but the limit of
/// memory.
Options on_one_layout(Options options) {
  const double limit = options.mesh.rank_memory_mib;
  options.mesh = {};
  options.mesh.rank_memory_mib = limit;
  options.meshes = ByModule<ModuleMeshOptions>{kDecoder};
  options.model.sync_module_states = false;
  return options;
}

/// Prefixes errors in planning the reference, which do not concern the deck's own layout.
template <class Make>
auto in_reference(const std::string& against, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw_error(error.code(), "in the reference (" + against + "): " + error.what());
  }
}

/// Where rounding is coarse, tokens whose gates nearly tie choose other experts.
void check_experts(const Plan& plan) {
  if (plan.model.has_experts() && plan.precision_of(kDecoder).param == DType::BFloat16)
    throw PlanError(
        "--verify-layout in bf16, but the model (" + plan.model.family +
        ") has mixtures of experts: rounding lets tokens choose other experts, which no bound "
        "covers; verify it with precision.preset=fp32, or fp64 on CPUs");
}

/// The records of some steps, and the time that they took.
struct Recorded {
  std::vector<StepRecord> steps;
  double seconds = 0;
};

struct Recording {
  const Plan& plan;
  const Start& start;
  const Communicator& ranks;
  WatchedRanks& watched;
  const Dataset& dataset;
  at::Device device;
  double cores;
  int64_t steps;
};

/// Collective over `on.ranks`.
Recorded record(const Recording& on) {
  const std::unique_ptr<Collectives> real = make_mpi_collectives(on.ranks);
  const auto control = make_recorded_collectives(*real, on.watched.record, "control");
  Mesh mesh(on.ranks, on.plan.mesh, collectives_of(on.device), &on.watched.record,
            on.plan.options.run.collective_checksums);
  StepRecorder recorder(on.plan);
  Engine engine(on.plan, mesh, on.device, recorder.observed(run_unit));
  agree(*control,
        [&] { load_weights(engine, on.start.source(), std::max(1, static_cast<int>(on.cores))); });
  if (on.plan.options.model.sync_module_states) engine.broadcast_weights();
  const LoaderOptions loading = loading_here(on.plan, on.ranks.rank(), on.cores);
  const Stopwatch clock;
  Recorded recorded{.steps =
                        record_steps(engine, recorder, *control, on.dataset, loading, on.steps)};
  recorded.seconds = clock.seconds();
  return recorded;
}

/// Waits for all ranks. A rank that only waits is seen to move, since the watchdogs of its node
/// know nothing of other nodes, whose ranks may work for long.
void wait_for_all(WatchedRanks& ranks) {
  int64_t here = 1;
  Pending all_here = ranks.real_control->all_reduce(&here, 1, DType::Int64, ReduceOp::Sum);
  while (!all_here.test()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ranks.record.moved();
  }
}

}  // namespace

ExitCode verify_layout(const CommandLine& line, Job& job) {
  const KernelRuntime kernels;
  const World& world = job.world;
  std::optional<std::jthread> start_limit = limit_start(kStartSeconds, job.abort_job);
  Communicator all = world.communicator();
  const std::unique_ptr<Collectives> of_all = make_mpi_collectives(all);
  Start start, other;
  std::string notes;
  const int most = world.size();
  const int64_t steps = line.steps > 0 ? line.steps : kUsualSteps;
  const int reference_ranks = line.ranks > 0 ? line.ranks : line.against.empty() ? 1 : most;
  const std::string against =
      line.against.empty() ? "keys of [mesh] at their defaults" : "--against " + line.against;
  agree(*of_all, [&] {
    if (reference_ranks > most)
      throw DeckError("--ranks " + std::to_string(reference_ranks) + " for the reference, but " +
                      std::to_string(most) + " ranks were started; allowed: 1 to that");
    start = read_start(line, most);
    start.options = checked_options(start.options, notes);
    if (line.against.empty()) return;
    other = in_reference(
        against, [&] { return read_start(line_of_layout(line, line.against), reference_ranks); });
    std::string same_notes;
    other.options = checked_options(other.options, same_notes);
    check_same_run(start.options, other.options);
  });
  const Plan plan = make_fitting_plan(start.options, start.config_json, most, start.profile);
  const Plan reference = in_reference(against, [&] {
    return make_fitting_plan(line.against.empty() ? on_one_layout(start.options) : other.options,
                             start.config_json, reference_ranks,
                             line.against.empty() ? std::string() : other.profile);
  });
  check_experts(plan);
  const RankOrder order = order_ranks(plan.mesh, world.node_of_rank(), plan.options.mesh.order);
  if (!order.is_identity()) all = all.reordered(order.logical_of_world[world.rank()], "ranks");
  job.rank = all.rank();
  WatchedRanks ranks(std::move(all), job, start);
  start_limit.reset();
  const at::Device device = open_device_of(start, ranks, world).device;
  at::set_num_threads(static_cast<int>(start.options.run.threads));
  const std::unique_ptr<Dataset> dataset =
      open_checked(plan.options.data.train, plan, shared_by(*ranks.control, ranks.record));
  const double cores = count_cores(ranks, world);

  const Recorded of_layout =
      record({plan, start, ranks.ranks, ranks, *dataset, device, cores, steps});
  const bool takes_part = ranks.ranks.rank() < reference_ranks;
  const Communicator some = ranks.ranks.split(takes_part ? 0 : Communicator::kNoColor, "reference");
  Recorded of_reference;
  if (takes_part)
    of_reference = record({reference, start, some, ranks, *dataset, device, cores, steps});
  wait_for_all(ranks);
  const Stopwatch clock;
  const LayoutComparison comparison =
      compare_records(*ranks.control, plan, of_layout.steps, of_reference.steps);
  int64_t differs = comparison.first.has_value();
  ranks.control->broadcast(&differs, 1, DType::Int64, 0).wait();
  if (ranks.is_root()) {
    std::string text;
    if (line.as_json) {
      text = json_of(comparison, {{"steps", steps},
                                  {"ranks", most},
                                  {"reference_ranks", reference_ranks},
                                  {"reference", against},
                                  {"precision", plan.options.precision.preset.name()},
                                  {"layout_seconds", of_layout.seconds},
                                  {"reference_seconds", of_reference.seconds},
                                  {"compare_seconds", clock.seconds()}});
    } else {
      text = formatted("layout of %d ranks against a reference of %d (", most, reference_ranks) +
             against +
             formatted("): %ld steps of %ld samples, ", static_cast<long>(steps),
                       static_cast<long>(plan.options.schedule.global_batch)) +
             plan.options.precision.preset.name() + "\n" + notes + describe(comparison) +
             formatted("seconds: layout %.1f, reference %.1f, comparison %.1f\n", of_layout.seconds,
                       of_reference.seconds, clock.seconds()) +
             (differs != 0 ? "the layout differs from the reference\n"
                           : "the layout equals the reference within bounds\n");
    }
    std::fputs(printable(text).c_str(), stdout);
  }
  return differs != 0 ? ExitCode::LayoutDiffers : ExitCode::Done;
}

}  // namespace zea
