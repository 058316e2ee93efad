// SPDX-License-Identifier: Apache-2.0
// Compares the seconds that zea predicts for layouts with those of their steps in virtual time
// (virtual_time.hpp): of a deck, all layouts of these ranks that --plan searches are predicted on
// the network of each hardware file, and some run: the fastest three on each, the deck's own, and
// others evenly from the fastest to the slowest.
//   mpirun -n 8 bench_layouts DECK RUNS HARDWARE... [section.key=value ...]
// Prints one line of JSON: {"layouts": [{"overrides", "own", "predicted": [...], "measured":
// [...]}], "found": n}, a number for each hardware file.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "batch/make_microbatch.hpp"
#include "checkpoint/load_weights.hpp"
#include "comm/agree.hpp"
#include "comm/world.hpp"
#include "deck/deck.hpp"
#include "estimate/layout_search.hpp"
#include "kernels/flat_kernels.hpp"
#include "library/start.hpp"
#include "train/train_step.hpp"
#include "train/training_data.hpp"
#include "virtual_time.hpp"

namespace {

using namespace zea;
using bench::Network;
using bench::RankTrace;

constexpr int kRepeats = 3;
constexpr size_t kFastest = 3;
constexpr size_t kAll = 1 << 20;

struct Arguments {
  CommandLine line;
  size_t runs = 0;
  std::vector<Hardware> hardware;
};

Arguments read_arguments(int argc, char** argv) {
  if (argc < 4)
    throw DeckError("usage: bench_layouts DECK RUNS HARDWARE... [section.key=value ...]");
  Arguments arguments;
  arguments.runs = std::stoul(argv[2]);
  arguments.line.deck = argv[1];
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    if (text.find('=') == std::string::npos)
      arguments.hardware.push_back(read_hardware(text));
    else
      arguments.line.overrides.push_back(text);
  }
  return arguments;
}

Network network_of(const Hardware& hardware) {
  const auto alpha = [](const LinkRates& link) { return 1e-6 * link.latency_us; };
  const auto beta = [](const LinkRates& link) { return 1e-9 / link.gb_per_s; };
  return {alpha(hardware.inside), beta(hardware.inside), alpha(hardware.between),
          beta(hardware.between)};
}

/// A layout with its predicted seconds on each network.
struct Candidate {
  std::string overrides, deck;
  std::vector<double> predicted;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

class LayoutBench {
 public:
  LayoutBench(const Arguments& arguments, const World& world)
      : arguments_(arguments),
        world_(world),
        ranks_(world.communicator()),
        control_(make_mpi_collectives(ranks_)),
        start_(read_start(arguments.line, world.size())),
        dataset_(open_dataset(start_.options.data.train.sets.at(0).path)),
        turn_(arguments.line.deck + ".turn") {}

  void run() {
    std::vector<Candidate> chosen;
    agree(*control_, [&] {
      if (control_->rank() == 0) chosen = choose();
    });
    nlohmann::json layouts = nlohmann::json::array();
    for (size_t i = 0;; ++i) {
      const bool is_root = control_->rank() == 0;
      const std::string own = is_root && i < chosen.size() ? chosen[i].deck : "";
      const std::string deck = all_gather_texts(*control_, own)[0];
      if (deck.empty()) break;
      const std::vector<double> measured = measure(deck);
      if (!is_root) continue;
      layouts.push_back({{"overrides", chosen[i].overrides},
                         {"own", chosen[i].overrides.empty()},
                         {"predicted", chosen[i].predicted},
                         {"measured", measured}});
      std::fprintf(stderr, "%3zu of %zu: %s\n", i + 1, chosen.size(), chosen[i].overrides.c_str());
    }
    if (control_->rank() == 0)
      std::printf("%s\n", nlohmann::json{{"layouts", layouts}, {"found", found_}}.dump().c_str());
  }

 private:
  int per_node() const { return static_cast<int>(arguments_.hardware.front().node.ranks); }

  StepSamples samples_of(const Plan& plan) const {
    StepSamples samples = draw_samples(plan, *dataset_, "data.train");
    samples.batches.resize(1);
    return samples;
  }

  /// The layouts that run, by their decks.
  std::vector<Candidate> choose() {
    std::map<std::string, Candidate> all;
    std::vector<std::vector<std::string>> sorted;  // of each network
    for (const Hardware& hardware : arguments_.hardware) {
      const SearchRequest request{.options = start_.options,
                                  .config_json = start_.config_json,
                                  .profile = {},
                                  .ranks = world_.size(),
                                  .ranks_per_node = per_node(),
                                  .memory_bytes = int64_t{1} << 50,
                                  .hardware = hardware};
      const SearchResult result = search_layouts(
          request, [&](const Plan& plan) { return samples_of(plan); }, kAll);
      sorted.emplace_back();
      for (const FoundLayout& layout : result.best) {
        Candidate& candidate = all[joined(layout.overrides)];
        candidate.overrides = joined(layout.overrides);
        candidate.deck = deck_of_layout(request, layout);
        candidate.predicted.push_back(layout.time.seconds);
        sorted.back().push_back(candidate.overrides);
      }
    }
    found_ = all.size();
    std::set<std::string> names;
    for (const auto& of_network : sorted)
      names.insert(of_network.begin(),
                   of_network.begin() + std::min<std::ptrdiff_t>(kFastest, std::ssize(of_network)));
    const std::vector<std::string>& first = sorted.front();
    const size_t runs = std::min(arguments_.runs, first.size());
    for (size_t i = 0; names.size() < runs && i < runs; ++i)
      names.insert(first[i * (first.size() - 1) / std::max<size_t>(1, runs - 1)]);
    std::vector<Candidate> chosen{own_layout()};
    for (const std::string& name : names) chosen.push_back(all.at(name));
    return chosen;
  }

  Candidate own_layout() const {
    Candidate own{.overrides = {}, .deck = echo_deck(start_.options), .predicted = {}};
    const Plan plan = make_plan(start_.options, start_.config_json, world_.size());
    const StepSamples samples = samples_of(plan);
    for (const Hardware& hardware : arguments_.hardware)
      own.predicted.push_back(
          step_time(plan, samples, hardware, planned_order(plan, per_node()).node_of_logical)
              .seconds);
    return own;
  }

  /// Trains the first step again and again. Returns its seconds on each network, on rank 0.
  std::vector<double> measure(const std::string& deck) {
    const Plan plan =
        make_plan(parse_deck(deck, "the layout", {}), start_.config_json, world_.size());
    at::set_num_threads(1);
    bench::Tracer tracer(world_.rank(), turn_);
    Mesh mesh(ranks_, plan.mesh, tracer.make());
    const std::unique_ptr<Collectives> control = tracer.make()(ranks_);
    Engine engine(plan, mesh, at::kCPU);
    load_weights(engine, *start_.weights);
    Optimizer optimizer(engine);
    TrainStep train_step(engine, optimizer, *control);
    Sampler sampler = make_sampler(plan.options, *dataset_);
    const RankStep step =
        plan.rank_step(plan.step_plan(0, sampler.global_batch(0), dataset_->index()), mesh.rank());
    const LoaderOptions loading = loading_on(plan, mesh.rank());
    std::vector<RankTrace> repeats;
    TrainPosition position;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {
      std::vector<LoadedMicrobatch> loaded;
      std::vector<Microbatch> microbatches;
      for (const MicrobatchPlan& part : step.microbatches) {
        loaded.push_back(load_microbatch(*dataset_, loading, part.samples));
        loaded.back().expert_tokens = part.expert_tokens;
      }
      for (const LoadedMicrobatch& part : loaded)
        microbatches.push_back(make_microbatch(part, plan.model, engine.microbatch_options()));
      control_->barrier();
      tracer.begin();
      train_step.begin();
      train_step.run(step, microbatches, 0, {}, position);
      train_step.finish(position);
      RankTrace trace = tracer.end();
      if (repeat >= 0) repeats.push_back(std::move(trace));
    }
    const std::vector<RankTrace> traces = bench::gather_traces(*control_, bench::least_of(repeats));
    std::vector<double> seconds;
    const std::vector<int> nodes = planned_order(plan, per_node()).node_of_logical;
    for (const Hardware& hardware : arguments_.hardware)
      seconds.push_back(bench::replayed_seconds(traces, network_of(hardware), nodes));
    return seconds;
  }

  const Arguments& arguments_;
  const World& world_;
  Communicator ranks_;
  std::unique_ptr<Collectives> control_;
  Start start_;
  std::unique_ptr<Dataset> dataset_;
  bench::OneAtATime turn_;
  size_t found_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  World world(&argc, &argv);
  try {
    const KernelRuntime kernels;
    const Arguments arguments = read_arguments(argc, argv);
    LayoutBench(arguments, world).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_layouts: %s\n", error.what());
    world.abort(1);
  }
}
