// SPDX-License-Identifier: Apache-2.0
// Times training steps of several variants of one deck in one group of ranks. Variants take turns
// of a few steps, so that a machine that is busy slows them alike; the first step of a turn is not
// timed, as it finds caches and memory as another variant left them. A step is what the trainer
// does with loaded samples: microbatches to tensors, forward, backward, reductions, clipping,
// update.
//   mpirun -n 2 bench_step DECK STEPS VARIANT... [section.key=value ...]
// With turns:FOLDER in place of STEPS it steps on request, so that another program can have its
// turns in between: each rank reads lines "NUMBER-OF-THE-VARIANT STEPS" from its own FIFO
// FOLDER/turns.<rank>, and rank 0 answers each with a line of JSON (seconds, losses). A variant is
// a strategy and a precision, "full_shard/bf16". A suffix "/silent" removes all communication
// except the few sums of a step's report, "/counted" counts the bytes of tensors, as zea does, and
// "@key=value,..." adds overrides. Prints a table on stderr and one line of JSON on stdout.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "checkpoint/load_weights.hpp"
#include "comm/world.hpp"
#include "data/sampler.hpp"
#include "deck/deck.hpp"
#include "io/open_source.hpp"
#include "kernels/flat_kernels.hpp"
#include "parallel/device_memory.hpp"
#include "silent_collectives.hpp"
#include "train/train_step.hpp"
#include "train/training_data.hpp"

namespace {

using namespace zea;
using Clock = std::chrono::steady_clock;

/// Returns the processor time of all threads of this process: it excludes time that other processes
/// take.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr int kWarmupSteps = 3;

/// Timed steps per turn.
constexpr int64_t kStepsOfTurn = 3;

constexpr std::string_view kTurns = "turns:";

struct Arguments {
  std::string deck;
  int64_t steps = 0;
  std::string turns;  ///< the folder of the FIFOs; empty: all steps at once
  std::vector<std::string> variants, overrides;
};

Arguments read_arguments(int argc, char** argv) {
  if (argc < 4)
    throw DeckError("usage: bench_step DECK STEPS|turns:FOLDER VARIANT... [section.key=value ...]");
  Arguments arguments;
  arguments.deck = argv[1];
  const std::string steps = argv[2];
  if (steps.starts_with(kTurns))
    arguments.turns = steps.substr(kTurns.size());
  else
    arguments.steps = std::stoll(steps);
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const bool is_variant =
        text.find('=') == std::string::npos || text.find('@') != std::string::npos;
    (is_variant ? arguments.variants : arguments.overrides).push_back(text);
  }
  return arguments;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// "strategy", "precision" and perhaps "silent" or "counted".
std::vector<std::string> words_of(const std::string& variant) {
  return split(variant.substr(0, variant.find('@')), '/');
}

bool is(const std::string& variant, const char* manner) {
  const std::vector<std::string> words = words_of(variant);
  return words.size() > 2 && words[2] == manner;
}

/// Lets a step's tensors be counted, or not; at most one at a time.
class Counting {
 public:
  Counting() : plain_(c10::GetAllocator(c10::kCPU)) {
    bytes_.emplace();
    counting_ = c10::GetAllocator(c10::kCPU);
    turn(false);
  }
  void turn(bool on) { c10::SetAllocator(c10::kCPU, on ? counting_ : plain_, UINT8_MAX); }

 private:
  c10::Allocator* plain_;
  std::optional<TensorBytes> bytes_;
  c10::Allocator* counting_;
};

std::vector<std::string> overrides_of(const std::string& variant) {
  const size_t at = variant.find('@');
  return at == std::string::npos ? std::vector<std::string>{} : split(variant.substr(at + 1), ',');
}

/// One variant's engine, with its measurements.
class Run {
 public:
  Run(const std::string& variant, const Arguments& arguments, const Communicator& world)
      : variant_(variant), plan_(make(arguments, world.size())), control_(make_control(world)) {
    at::set_num_threads(static_cast<int>(plan_.options.run.threads));
    const bool silent = is(variant_, "silent");
    mesh_ = std::make_unique<Mesh>(world, plan_.mesh,
                                   silent ? bench::make_silent_collectives : make_host_collectives);
    engine_ = std::make_unique<Engine>(plan_, *mesh_, at::kCPU);
    load_weights(*engine_, *open_weights(plan_.options.model.weights));
    optimizer_ = std::make_unique<Optimizer>(*engine_);
    train_step_ = std::make_unique<TrainStep>(*engine_, *optimizer_, *control_);
    dataset_ = open_dataset(plan_.options.data.train.sets.at(0).path);
    sampler_ = std::make_unique<Sampler>(static_cast<int64_t>(dataset_->index().size()),
                                         plan_.options.schedule.global_batch,
                                         plan_.options.run.seed, plan_.options.data.shuffle);
  }

  void step(Counting& counting, bool is_timed) {
    counting.turn(is(variant_, "counted"));
    const std::vector<int64_t> ids = sampler_->global_batch(done_);
    const RankStep step =
        plan_.rank_step(plan_.step_plan(done_, ids, dataset_->index()), mesh_->rank());
    std::vector<LoadedMicrobatch> loaded;
    for (const MicrobatchPlan& part : step.microbatches) {
      loaded.push_back(load_microbatch(*dataset_, loading(), part.samples));
      loaded.back().expert_tokens = part.expert_tokens;
    }
    control_->barrier();
    const Clock::time_point start = Clock::now();
    const double cpu_start = cpu_seconds();
    train_step_->begin();
    std::vector<Microbatch> microbatches;
    for (const LoadedMicrobatch& part : loaded)
      microbatches.push_back(make_microbatch(part, plan_.model, engine_->microbatch_options()));
    train_step_->run(step, microbatches, 0, {}, position_);
    losses_.push_back(train_step_->finish(position_).value().loss);
    control_->barrier();
    all_seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    ++done_;
    if (is_timed) {
      seconds_.push_back(all_seconds_.back());
      cpu_seconds_.push_back(cpu_seconds() - cpu_start);
    }
    for (int64_t id : ids) tokens_ += dataset_->index()[id].tokens;
    samples_ += static_cast<int64_t>(ids.size());
  }

  /// All in a row; those of `untimed` come first.
  void steps(int64_t untimed, int64_t timed, Counting& counting) {
    for (int64_t i = 0; i < untimed; ++i) step(counting, false);
    for (int64_t i = 0; i < timed; ++i) step(counting, true);
  }

  /// Collective.
  nlohmann::json take_turn(int64_t steps, Counting& counting) {
    this->steps(0, steps, counting);
    const auto last = [steps](const std::vector<double>& all) {
      return std::vector<double>(all.end() - steps, all.end());
    };
    return {{"variant", variant_}, {"seconds", last(all_seconds_)}, {"losses", last(losses_)}};
  }

  /// The slowest rank's; collective.
  void agree_on_cpu_seconds() {
    least_cpu_seconds_ = *std::min_element(cpu_seconds_.begin(), cpu_seconds_.end());
    control_->all_reduce(&least_cpu_seconds_, 1, DType::Float64, ReduceOp::Max).wait();
  }

  nlohmann::json report() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[sorted.size() / 2];
    const double steps = static_cast<double>(done_);
    return {{"variant", variant_},
            {"median_s", median},
            {"min_s", sorted.front()},
            {"tokens_per_s", static_cast<double>(tokens_) / steps / median},
            {"samples_per_s", static_cast<double>(samples_) / steps / median},
            {"min_cpu_s", least_cpu_seconds_},
            {"sent_bytes", sent_bytes()},
            {"seconds", seconds_},
            {"losses", losses_}};
  }

 private:
  Plan make(const Arguments& arguments, int ranks) const {
    const std::vector<std::string> parts = words_of(variant_);
    if (parts.size() < 2)
      throw DeckError("variant '" + variant_ +
                      "' is not <strategy>/<precision>[/silent|/counted][@...]");
    if (parts.size() > 2 && !is(variant_, "silent") && !is(variant_, "counted"))
      throw DeckError("variant '" + variant_ + "': '" + parts[2] + "' is not silent or counted");
    std::vector<std::string> overrides = arguments.overrides;
    for (const std::string& own : overrides_of(variant_)) overrides.push_back(own);
    overrides.push_back("precision.preset=" + parts[1]);
    Options options = read_deck(arguments.deck, overrides);
    options.meshes["llm"].strategy = parts[0];
    const std::string config = open_weights(options.model.weights)->config_json();
    const ModelSpec model = make_model_spec(config);
    for (const EncoderSpec& encoder : model.encoders)
      options.meshes[encoder.name].strategy = parts[0];
    return make_plan(options, config, ranks);
  }

  /// Bytes that this rank sends in a step, by group of ranks.
  std::map<std::string, double> sent_bytes() const {
    std::map<std::string, double> of_step;
    for (const auto& [group, bytes] : mesh_->traffic())
      of_step[group] = static_cast<double>(bytes) / static_cast<double>(done_);
    return of_step;
  }

  static std::unique_ptr<Collectives> make_control(const Communicator& world) {
    return make_mpi_collectives(world);
  }

  LoaderOptions loading() const { return loading_on(plan_, mesh_->rank()); }

  std::string variant_;
  Plan plan_;
  std::unique_ptr<Collectives> control_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<TrainStep> train_step_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Sampler> sampler_;
  int64_t done_ = 0, tokens_ = 0, samples_ = 0;
  TrainPosition position_;
  std::vector<double> all_seconds_, seconds_, cpu_seconds_, losses_;
  double least_cpu_seconds_ = 0;
};

using Runs = std::vector<std::unique_ptr<Run>>;

void print(const Runs& runs) {
  nlohmann::json all = nlohmann::json::array();
  std::fprintf(stderr, "%-26s %10s %10s %10s %10s %10s %10s\n", "variant", "median ms", "min ms",
               "min cpu ms", "tokens/s", "samples/s", "last loss");
  for (const auto& run : runs) {
    const nlohmann::json one = run->report();
    std::fprintf(stderr, "%-26s %10.2f %10.2f %10.2f %10.0f %10.1f %10.5f\n",
                 one["variant"].get<std::string>().c_str(), 1e3 * one["median_s"].get<double>(),
                 1e3 * one["min_s"].get<double>(), 1e3 * one["min_cpu_s"].get<double>(),
                 one["tokens_per_s"].get<double>(), one["samples_per_s"].get<double>(),
                 one["losses"].back().get<double>());
    all.push_back(one);
  }
  std::printf("%s\n", all.dump().c_str());
}

/// Every rank waits for a line of its own: one that waited for another rank would not be idle.
void step_when_told(const Runs& runs, const std::string& folder, int rank, Counting& counting) {
  std::ifstream orders(folder + "/turns." + std::to_string(rank));
  int64_t variant = 0, steps = 0;
  while (orders >> variant >> steps) {
    const nlohmann::json answer = runs.at(variant)->take_turn(steps, counting);
    if (rank != 0) continue;
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

void take_turns(const Arguments& arguments, const World& world) {
  const Communicator ranks = world.communicator();
  const KernelRuntime kernels;
  Counting counting;  // outlives all tensors
  Runs runs;
  for (const std::string& variant : arguments.variants)
    runs.push_back(std::make_unique<Run>(variant, arguments, ranks));
  if (!arguments.turns.empty())
    return step_when_told(runs, arguments.turns, world.rank(), counting);
  for (const auto& run : runs) run->steps(kWarmupSteps, 0, counting);
  for (int64_t left = arguments.steps; left > 0; left -= kStepsOfTurn)
    for (const auto& run : runs) run->steps(1, std::min(left, kStepsOfTurn), counting);
  for (const auto& run : runs) run->agree_on_cpu_seconds();
  if (world.rank() == 0) print(runs);
}

}  // namespace

int main(int argc, char** argv) {
  World world(&argc, &argv);
  try {
    take_turns(read_arguments(argc, argv), world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_step: %s\n", error.what());
    world.abort(1);
  }
}
