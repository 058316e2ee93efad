// SPDX-License-Identifier: Apache-2.0
#include "app/answer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <tuple>
#include <utility>

#include "app/auto_layout.hpp"
#include "app/measured_times.hpp"
#include "core/text.hpp"
#include "deck/deck.hpp"
#include "estimate/describe.hpp"
#include "estimate/goodput.hpp"
#include "estimate/layout_search.hpp"
#include "files/durable_file.hpp"
#include "kernels/flat_kernels.hpp"
#include "library/plan_text.hpp"
#include "train/profile.hpp"
#include "train/training_data.hpp"

namespace zea {
namespace {

/// --profile: writes a file of measured costs.
std::string profile(const CommandLine& line) {
  const KernelRuntime kernels;
  const Start start = read_start(line, 1);
  const Profile measured = profile_units(start.options, start.config_json);
  write_text_durably(line.profile, measured.json);
  return measured.table + "written to " + line.profile + ", for mesh.profile\n";
}

/// The data of a plan, where it exists.
struct PlannedData {
  std::unique_ptr<Dataset> train, eval;
  std::string notes;  ///< on missing data
};

bool is_missing(const std::string& path) {
  std::error_code fault;  // opening it reports any other fault
  return std::filesystem::status(path, fault).type() == std::filesystem::file_type::not_found;
}

/// Opens and checks the data of a run, and refuses data that the run would refuse.
PlannedData open_planned(const Start& start, const Plan& plan) {
  const Options& options = plan.options;
  const auto missing = [](const std::string& key, const std::string& path) {
    return "note: " + key + " = \"" + path +
           "\" is not there yet, so nothing of it is checked; a run needs it\n";
  };
  PlannedData data;
  if (options.run.mode == RunMode::Train) {
    for (const DataSource& set : options.data.train.sets)
      if (is_missing(set.path)) data.notes += missing("data.train", set.path);
    if (data.notes.empty()) {
      data.train = open_checked(options.data.train, plan);
    } else {
      for (const DataSource& set : options.data.train.sets)
        if (!is_missing(set.path)) open_checked(set.path, plan);
    }
  }
  const std::string& eval = options.data.eval;
  if (!eval.empty() && is_missing(eval))
    data.notes += missing("data.eval", eval);
  else
    data.eval = open_checked_eval(plan);
  for (const std::string& note : notes_on_data(start, data.train.get(), data.eval.get()))
    data.notes += "note: " + note + "\n";
  return data;
}

/// Reads all samples: a run would refuse bad ones in its first steps.
void read_all(const StepSamples& samples) {
  for (int64_t number = 0; number < std::ssize(samples.index); ++number) samples.tokens(number);
}

/// The hardware of the command line; without --ranks-per-node its file says how many ranks share a
/// node.
PlannedHardware hardware_of(const CommandLine& line, int ranks) {
  PlannedHardware on{.ranks_per_node = line.ranks_per_node};
  if (line.hardware.empty()) return on;
  on.hardware = read_hardware(line.hardware);
  if (on.ranks_per_node == 0)
    on.ranks_per_node = static_cast<int>(std::min<int64_t>(on.hardware->node.ranks, ranks));
  return on;
}

/// The samples of a start, of data that it opens into `data`.
StepSamples open_samples(const Start& start, const Plan& plan, PlannedData& data) {
  data = open_planned(start, plan);
  StepSamples samples = first_samples(start, plan, data.train.get(), data.eval.get());
  read_all(samples);
  return samples;
}

/// Searches the layout of mesh.layout = "auto".
std::string choose_planned(Start& start, int ranks, const PlannedHardware& on) {
  PlannedData data;  // which the samples read
  const int per_node = on.ranks_per_node > 0 ? on.ranks_per_node : ranks;
  return choose_layout(start, {.ranks = ranks, .per_node = per_node, .hardware = on.hardware},
                       [&](const Plan& plan) { return open_samples(start, plan, data); });
}

std::string plan_text(const CommandLine& line, int ranks) {
  const PlannedHardware on = hardware_of(line, ranks);
  Start start = read_start(line, ranks);
  const std::string chosen = choose_planned(start, ranks, on);
  const Plan plan = plan_of(start, ranks);
  PlannedData data;
  const StepSamples samples = open_samples(start, plan, data);
  if (!line.as_json)
    return chosen + plan_text(start, plan, samples, facts_of(plan, samples), on, data.notes);
  const RankOrder order = planned_order(plan, on.ranks_per_node);
  std::vector<TimelineSpan> spans;
  const StepTime time = step_time(plan, samples, *on.hardware, order.node_of_logical, &spans);
  return plan_json(plan, time, draw_layout(plan, order, std::move(spans)), *on.hardware);
}

/// Writes a deck of each layout: layout_01.toml and so on.
std::string write_decks(const std::string& directory, const SearchRequest& request,
                        const SearchResult& result) {
  std::error_code fault;
  std::filesystem::create_directories(directory, fault);
  if (fault) throw StorageError("cannot make the folder " + directory + ": " + fault.message());
  int number = 0;
  for (const FoundLayout& layout : result.best)
    write_text_durably(directory + formatted("/layout_%02d.toml", ++number),
                       deck_of_layout(request, layout));
  return formatted("%d decks written to ", number) + directory + "\n";
}

/// A search by --plan finds what mesh.layout = "auto" would.
void give_layout(Options& options) {
  const MeshOptions usual;
  options.mesh.layout = usual.layout;
  options.mesh.hardware = usual.hardware;
  options.mesh.searched_ranks = usual.searched_ranks;
  options.mesh.searched_keys = usual.searched_keys;
  for (const char* key : {"layout", "hardware", "searched_ranks", "searched_keys"})
    options.given.erase(std::string("mesh.") + key);
}

/// --mtbf: plans the checkpoints of layouts by the times of an earlier run, else by the rate at
/// which ranks write.
class CheckpointPlanner {
 public:
  CheckpointPlanner(const CommandLine& line, const Start& start, const NodeFacts& node)
      : hours_(line.mtbf_hours), node_(node), measured_(read_measured_times(start.directory)) {
    if (!measured_.save && node.storage_gb_per_s == 0)
      throw DeckError(
          "--mtbf needs the time of a checkpoint: there is no earlier run with one in " +
          start.directory +
          " (metrics.jsonl), and the hardware file has no node.storage_gb_per_s; give "
          "that, or the directory of a run by -d");
  }

  CheckpointPlan plan(const FoundLayout& layout) const {
    const double written =
        node_.storage_gb_per_s > 0 ? layout.checkpoint_bytes / (1e9 * node_.storage_gb_per_s) : 0;
    const FailureTimes times{
        .between_failures = 3600 * hours_,
        .save = measured_.save.value_or(written),
        .restart = measured_.start ? *measured_.start : node_.start_seconds + written};
    const auto steps = std::max<int64_t>(
        1, static_cast<int64_t>(std::llround(best_interval(times) / layout.time.seconds)));
    return {.save_seconds = times.save,
            .every = steps,
            .goodput = goodput(times, static_cast<double>(steps) * layout.time.seconds)};
  }

  std::string text(const std::vector<FoundLayout>& layouts) const {
    std::string text =
        formatted("checkpoints, with a failure every %.4g hours: ", hours_) +
        (measured_.save
             ? formatted("a checkpoint stops training for %.3g s, as measured", *measured_.save)
             : formatted("training waits while ranks write at %.4g GB/s", node_.storage_gb_per_s)) +
        formatted("; a restart takes %.4g s", measured_.start.value_or(node_.start_seconds)) +
        (measured_.start ? ", as measured" : " and the time to read") +
        "\n      save s  checkpoint.every  goodput %  tokens/s kept\n";
    int number = 0;
    for (const FoundLayout& layout : layouts) {
      const CheckpointPlan& plan = *layout.checkpoints;
      text += formatted("  %2d  %6.3g  %16ld  %9.2f  %13.4g\n", ++number, plan.save_seconds,
                        static_cast<long>(plan.every), 100 * plan.goodput,
                        plan.goodput * layout.time.tokens_per_second);
    }
    return text;
  }

 private:
  const double hours_;
  const NodeFacts& node_;
  const MeasuredTimes measured_;
};

/// --plan: searches the fastest layouts over the keys that the deck leaves open. Returns the text,
/// and the exit code: Usage if no layout fits, like a refused plan.
std::pair<std::string, ExitCode> search(const CommandLine& line, int ranks) {
  constexpr size_t kBest = 10;
  const PlannedHardware on = hardware_of(line, ranks);
  Start start = read_start(line, ranks);
  give_layout(start.options);
  const double gib = line.memory_gib > 0 ? line.memory_gib : on.hardware->node.memory_gib;
  const SearchRequest request{.options = start.options,
                              .config_json = start.config_json,
                              .profile = start.profile,
                              .ranks = ranks,
                              .ranks_per_node = on.ranks_per_node,
                              .memory_bytes = static_cast<int64_t>(gib * (int64_t{1} << 30)),
                              .hardware = *on.hardware};
  std::optional<CheckpointPlanner> checkpoints;
  if (line.mtbf_hours > 0) checkpoints.emplace(line, start, request.hardware.node);
  PlannedData data;  // which the samples read
  std::string source;
  SearchResult result = search_layouts(
      request,
      [&](const Plan& plan) {
        StepSamples samples = open_samples(start, plan, data);
        source = "by " + samples.steps_text(plan) + (samples.is_real ? " of " : ": ") +
                 samples.source + "\n";
        return samples;
      },
      kBest);
  if (checkpoints)
    for (FoundLayout& layout : result.best) layout.checkpoints = checkpoints->plan(layout);
  const std::string written =
      line.out_directory.empty() ? "" : write_decks(line.out_directory, request, result);
  const ExitCode code = result.best.empty() ? ExitCode::Usage : ExitCode::Done;
  if (line.as_json) return {search_json(request, result), code};
  return {data.notes + source + describe_search(request, result) +
              (checkpoints ? checkpoints->text(result.best) : "") + written,
          code};
}

/// Returns the settings that decide which samples are drawn: layouts are compared by the same
/// samples.
std::vector<std::pair<std::string, std::string>> drawn_by(const Options& options) {
  std::string sets;
  for (const DataSource& set : options.data.train.sets)
    sets += (sets.empty() ? "" : ", ") + set.path + " (weight " + std::to_string(set.weight) + ")";
  return {{"run.mode", options.run.mode.name()},
          {"run.seed", std::to_string(options.run.seed)},
          {"data.train", sets},
          {"data.eval", options.data.eval},
          {"data.shuffle", options.data.shuffle ? "true" : "false"},
          {"eval.samples", std::to_string(options.eval.samples)},
          {"schedule.steps", std::to_string(options.schedule.steps)},
          {"schedule.global_batch", std::to_string(options.schedule.global_batch)}};
}

void check_same_samples(const Options& first, const Options& other) {
  const auto of_first = drawn_by(first), of_other = drawn_by(other);
  for (size_t key = 0; key < of_first.size(); ++key)
    if (of_first[key] != of_other[key])
      throw DeckError(of_other[key].first + " is " + of_other[key].second + ", and " +
                      of_first[key].second +
                      " in the first layout; layouts are compared by the same samples, so keep it");
}

/// Returns encoders' names and tokens per item, as made-up samples have them.
std::string items_of(const ModelSpec& model) {
  std::string text;
  for (const EncoderSpec& encoder : model.encoders)
    text += encoder.name + " " + std::to_string(encoder.item_shape().features) + ", ";
  return text;
}

/// --compare: compares the layout of the command line with others.
class Comparison {
 public:
  Comparison(const CommandLine& line, int ranks) : line_(line), ranks_(ranks) {}

  std::string text() {
    CommandLine own = line_;
    own.compare.clear();
    const std::string base = line_.deck.empty() ? "-r " + line_.restart : line_.deck;
    layouts_.push_back(compared(base, own));
    for (const std::string& entry : line_.compare) {
      try {
        layouts_.push_back(compared(entry, line_of_layout(line_, entry)));
      } catch (const Error& error) {
        layouts_.push_back({.name = entry, .refusal = error.what()});
      }
    }
    return notes_ + compare_layouts(heading_, layouts_);
  }

 private:
  ComparedLayout compared(const std::string& name, const CommandLine& line) {
    Start start = read_start(line, ranks_);
    if (first_) check_same_samples(*first_, start.options);
    const PlannedHardware on = hardware_of(line, ranks_);
    notes_ += choose_planned(start, ranks_, on);
    const Plan plan = plan_of(start, ranks_);
    const PlannedData data = open_planned(start, plan);
    StepSamples samples = first_samples(start, plan, data.train.get(), data.eval.get());
    if (!first_) {
      first_ = start.options;
      notes_ += data.notes;
      items_ = items_of(plan.model);
      heading_ = samples.steps_text(plan) + (samples.is_real ? " of " : ": ") + samples.source;
      if (!samples.is_real) made_up_ = samples;
    } else if (made_up_) {
      if (items_of(plan.model) != items_)
        throw DeckError(
            "the model has other encoders than that of the first layout, so its "
            "samples cannot be the same; compare layouts of one model");
      samples = *made_up_;
    }
    ComparedLayout layout{.name = name, .facts = facts_of(plan, samples)};
    layout.world_size = plan.world_size();
    if (on.hardware)
      layout.time = step_time(plan, samples, *on.hardware,
                              planned_order(plan, on.ranks_per_node).node_of_logical);
    layout.replicas = plan.mesh.replicas();
    const auto groups = estimate_groups(plan, predicted_microbatches(plan));
    for (const MemoryEstimate& group : groups)
      layout.full_bytes = std::max(layout.full_bytes, group.with_graphs());
    return layout;
  }

  const CommandLine& line_;
  const int ranks_;
  std::string notes_, heading_, items_;
  std::optional<Options> first_;
  std::optional<StepSamples> made_up_;
  std::vector<ComparedLayout> layouts_;
};

}  // namespace

std::vector<std::string> notes_on_data(const Start& start, const Dataset* train,
                                       const Dataset* eval, const SharedOpening& opening) {
  std::vector<std::string> notes = notes_of({train, eval}, start.source(), opening);
  if (train && start.checkpoint)
    notes.push_back(compare_data(*train, start.checkpoint->position(), start.options.data));
  std::erase(notes, "");
  return notes;
}

StepSamples first_samples(const Start& start, const Plan& plan, const Dataset* train,
                          const Dataset* eval) {
  const bool trains = plan.options.run.mode == RunMode::Train;
  const Dataset* const dataset = trains ? train : eval;
  if (dataset == nullptr) return synthetic_samples(plan);
  const int64_t first = trains && start.checkpoint ? start.checkpoint->position().step : 0;
  return draw_samples(plan, *dataset, trains ? "data.train" : "data.eval", first);
}

bool answers_without_ranks(int argc, const char* const* argv) {
  try {
    const CommandLine line = parse_command_line(argc, argv);
    return line.show_help || line.show_version || line.show_build || line.show_manual ||
           line.plan_only || !line.profile.empty();
  } catch (const DeckError&) {
    return false;  // the root rank reports it
  }
}

ExitCode answer(const CommandLine& line) {
  std::string text;
  ExitCode code = ExitCode::Done;
  const int ranks = std::max(1, line.ranks);
  if (line.show_help)
    text = line.help_key.empty() ? help_text() : key_help(line.help_key);
  else if (line.show_manual)
    text = manual_text();
  else if (line.show_version)
    text = version_text();
  else if (line.show_build)
    text = build_text();
  else if (!line.profile.empty())
    text = profile(line);
  else if (line.search)
    std::tie(text, code) = search(line, ranks);
  else if (!line.compare.empty())
    text = Comparison(line, ranks).text();
  else
    text = plan_text(line, ranks);
  std::fputs(printable(text).c_str(), stdout);
  return code;
}

}  // namespace zea
