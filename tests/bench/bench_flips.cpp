// SPDX-License-Identifier: Apache-2.0
// The fraction of flipped bits that each check of a run finds, and false alarms. A tiny LLaVA in
// fp32 trains on 4 ranks; one bit flips in step 9: bit, element, unit or buffer, call and rank are
// random.
//
//   bench_flips STRATEGY TRIALS    how many of TRIALS flips each check finds
//   bench_flips --clean STEPS      steps without a flip: all replayed, then all with checksums
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/checksummed_collectives.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "core/system.hpp"
#include "kernels/flat_kernels.hpp"
#include "support/axis_layouts.hpp"
#include "support/flipped_units.hpp"
#include "train/check_copies.hpp"

namespace zea::testing {
namespace {

constexpr int64_t kStepsBefore = 8;

enum class Flipped { Output, OutputGradient, ParameterGradient, Parameter, Wire };
constexpr std::pair<Flipped, const char*> kFlipped[] = {
    {Flipped::Output, "a unit's output"},
    {Flipped::OutputGradient, "an output's gradient"},
    {Flipped::ParameterGradient, "a parameter's gradient"},
    {Flipped::Parameter, "a parameter"},
    {Flipped::Wire, "a message"}};

enum class Check { Replay, Copies, Checksums, Guards };
constexpr std::pair<Check, const char*> kChecks[] = {{Check::Replay, "run.replay_every"},
                                                     {Check::Copies, "hashes of copies"},
                                                     {Check::Checksums, "run.collective_checksums"},
                                                     {Check::Guards, "optim.spike_deviations = 6"}};

/// A flip, the same on all ranks but for its effect.
struct Drawn {
  Flipped what = Flipped::Output;
  int rank = 0;
  uint64_t element = 0, place = 0;
  int bit = 0;
};

/// Calls of floats that are to be counted and flipped, on this rank.
struct WireFlip {
  bool is_armed = false;
  int64_t calls = 0, flipped_call = -1;
  uint64_t element = 0;
  int bit = 0;
};

/// Flips a bit that a call brings from another rank.
class FlippingCollectives : public WrappedCollectives {
 public:
  FlippingCollectives(std::unique_ptr<Collectives> real, WireFlip& flip)
      : WrappedCollectives(*real), real_(std::move(real)), flip_(flip) {}

  Pending start(const CollectiveCall& call) override {
    void* received = call.receive;
    int64_t count = call.kind == CallKind::ReduceScatter ? call.counts[rank()] : call.count;
    if (call.kind == CallKind::AllToAll)
      count = std::accumulate(call.receive_counts.begin(), call.receive_counts.end(), int64_t{0});
    bool is_float = call.dtype == DType::Float32;
    for (const Message& message : call.receives)
      if (message.dtype == DType::Float32)
        received = message.data, count = message.count, is_float = true;
    Pending pending = inner_.start(call);
    if (!flip_.is_armed || !is_float || received == nullptr || count == 0) return pending;
    if (flip_.calls++ != flip_.flipped_call) return pending;
    pending.wait();
    const auto element = static_cast<int64_t>(flip_.element % static_cast<uint64_t>(count));
    static_cast<uint32_t*>(received)[element] ^= 1u << flip_.bit;
    return {};
  }

 private:
  std::unique_ptr<Collectives> real_;
  WireFlip& flip_;
};

/// Counts the changed messages that checksums find, and goes on, since other ranks do not know.
class CountingCollectives : public WrappedCollectives {
 public:
  CountingCollectives(std::unique_ptr<Collectives> flipping, const Communicator& group,
                      int64_t& found)
      : WrappedCollectives(*flipping),
        flipping_(std::move(flipping)),
        checked_(make_checksummed_collectives(*flipping_, "group", all_of(group.size()))),
        found_(found) {}

  Pending start(const CollectiveCall& call) override {
    return Pending(std::make_unique<Counted>(checked_->start(call), found_));
  }

 private:
  class Counted : public Pending::Work {
   public:
    Counted(Pending real, int64_t& found) : real_(std::move(real)), found_(found) {}
    void wait() override {
      count([&] { real_.wait(); });
    }
    bool test() override {
      bool is_done = true;
      count([&] { is_done = real_.test(); });
      return is_done;
    }

   private:
    template <class Call>
    void count(const Call& call) {
      try {
        call();
      } catch (const Error& error) {
        if (error.code() != ExitCode::SickNode) throw;
        ++found_;
      }
    }

    Pending real_;
    int64_t& found_;
  };

  static std::vector<int> all_of(int size) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  std::unique_ptr<Collectives> flipping_, checked_;
  int64_t& found_;
};

/// A run that is set back to the same step for each flip.
class Bench {
 public:
  /// Trains the first steps of a run with one of the checks. Collective, as all functions.
  Bench(const World& world, const std::string& strategy, Check check)
      : ranks_(world.communicator()), check_(check) {
    TinyRunOptions run = run_on({.name = "dp"}, "fp32");
    for (const char* module : {"vision", "llm"}) run.deck.meshes[module].strategy = strategy;
    run.deck.data.rows_per_microbatch = 8;  // a unit runs once in each pass
    run.deck.schedule.steps = 1000000;
    run.deck.optim.lr = 1e-3;
    if (check == Check::Replay) run.deck.run.replay_every = 1;
    if (check == Check::Guards) {
      run.deck.optim.spike_deviations = 6;
      run.deck.optim.spike_window = kStepsBefore;
      run.deck.optim.max_skips = 0;
    }
    run.run_unit = [this](const UnitArguments& call) { return run_unit_(call); };
    run_.emplace(ranks_, make(), dataset_, run);
    TinyResult result;
    run_->train(kStepsBefore, result);
    for (const at::Tensor& values : all_values()) saved_.push_back(values.clone());
    position_ = run_->position();
    wire_.is_armed = true;
    run_->train(1, result);
    wire_.is_armed = false;
    calls_ = std::exchange(wire_.calls, 0);
  }

  /// Returns whether the check finds the flip.
  bool finds(const Drawn& drawn) {
    set_back();
    plant(drawn);
    TinyResult result;
    bool is_found = false;
    try {
      run_->train(1, result);
      is_found = !result.replay_findings.empty() || std::exchange(found_, 0) > 0;
      if (check_ == Check::Copies) check_copies(run_->engine(), run_->control());
      wire_.is_armed = false;
      run_unit_ = run_unit;
      if (check_ == Check::Guards) run_->train(1, result);  // what the step did may show later
    } catch (const Error&) {
      is_found = true;
    }
    int64_t found = is_found;
    run_->control().all_reduce(&found, 1, DType::Int64, ReduceOp::Max).wait();
    return found != 0;
  }

  /// Trains without flips and returns the alarms; throws at an alarm of the copies.
  int64_t train_clean(int64_t steps) {
    TinyResult result;
    for (int64_t done = 0; done < steps; done += 100) {
      run_->train(std::min<int64_t>(100, steps - done), result);
      check_copies(run_->engine(), run_->control());
    }
    return std::ssize(result.replay_findings) + found_;
  }

 private:
  MakeCollectives make() {
    return [this](const Communicator& group) -> std::unique_ptr<Collectives> {
      auto flipping = std::make_unique<FlippingCollectives>(make_mpi_collectives(group), wire_);
      if (check_ != Check::Checksums) return flipping;
      return std::make_unique<CountingCollectives>(std::move(flipping), group, found_);
    };
  }
  /// Parameters and states of the optimizer.
  std::vector<at::Tensor> all_values() {
    std::vector<at::Tensor> all;
    Engine& engine = run_->engine();
    for (const auto& buffer : engine.buffers()) {
      if (!buffer) continue;
      all.push_back(buffer->master());
      if (!buffer->trainable()) continue;
      for (const StateSpec& state : engine.plan().optimizer.states)
        all.push_back(engine.state(*buffer, state.name));
    }
    return all;
  }
  void set_back() {
    const at::NoGradGuard no_graph;
    const std::vector<at::Tensor> values = all_values();
    for (size_t i = 0; i < values.size(); ++i) values[i].copy_(saved_[i]);
    ShardedBuffer::publish_all(run_->engine().buffers());
    run_->position() = position_;
    run_unit_ = run_unit;
    wire_ = {};
    found_ = 0;
    run_->control().barrier();
  }
  void plant(const Drawn& drawn) {
    const bool is_here = ranks_.rank() == drawn.rank;
    const auto element = static_cast<int64_t>(drawn.element >> 1);
    if (drawn.what == Flipped::Wire) {
      wire_ = {.is_armed = true, .flipped_call = -1, .element = drawn.element, .bit = drawn.bit};
      if (is_here && calls_ > 0)
        wire_.flipped_call = static_cast<int64_t>(drawn.place % static_cast<uint64_t>(calls_));
    } else if (drawn.what == Flipped::Parameter) {
      if (!is_here) return;
      std::vector<at::Tensor> trained;
      for (const auto& buffer : run_->engine().buffers())
        if (buffer && buffer->trainable() && buffer->master().numel() > 0)
          trained.push_back(buffer->master().detach());
      flip_bit(trained[drawn.place % trained.size()], element, drawn.bit);
    } else {
      Flips flips{"llm.layers." + std::to_string(drawn.place % 2),
                  drawn.what == Flipped::Output           ? HashedValue::Output
                  : drawn.what == Flipped::OutputGradient ? HashedValue::OutputGradient
                                                          : HashedValue::Gradient,
                  {drawn.rank},
                  {check_ == Check::Replay ? 1 : 0}};
      flips.element = element;
      flips.bit = drawn.bit;
      run_unit_ = flipped(flips, ranks_.rank());
    }
  }

  const Communicator ranks_;
  const Check check_;
  const MemoryDataset dataset_ = axis_dataset();
  WireFlip wire_;
  int64_t found_ = 0;  ///< by checksums, on this rank
  RunUnit run_unit_ = run_unit;
  std::optional<TinyRun> run_;
  std::vector<at::Tensor> saved_;
  TrainPosition position_;
  int64_t calls_ = 0;  ///< that bring floats in a step, or in both passes of a replayed one
};

void measure(const World& world, const std::string& strategy, int64_t trials) {
  const bool is_root = world.rank() == 0;
  for (const auto& [check, of] : kChecks) {
    Bench bench(world, strategy, check);
    if (is_root) std::printf("%s, %s:", strategy.c_str(), of);
    for (const auto& [what, name] : kFlipped) {
      std::mt19937_64 random(1);
      int64_t found = 0;
      for (int64_t trial = 0; trial < trials; ++trial) {
        Drawn drawn;
        drawn.what = what;
        drawn.rank = static_cast<int>(random() % kAxisRanks);
        drawn.element = random();
        drawn.place = random();
        drawn.bit = static_cast<int>(random() % 32);
        found += bench.finds(drawn);
      }
      if (is_root) std::printf("  %s %ld", name, static_cast<long>(found));
      std::fflush(stdout);
    }
    if (is_root) std::printf("  of %ld\n", static_cast<long>(trials));
  }
}

void run(const World& world, const std::vector<std::string>& words) {
  const KernelRuntime kernels;
  if (world.size() != kAxisRanks || words.size() != 2)
    throw std::runtime_error("bench_flips STRATEGY TRIALS or --clean STEPS, on 4 ranks");
  at::set_num_threads(1);
  if (words[0] != "--clean") return measure(world, words[0], std::stoll(words[1]));
  const int64_t steps = std::stoll(words[1]);
  for (const auto& [check, name] : kChecks) {
    if (check != Check::Replay && check != Check::Checksums) continue;
    Bench bench(world, "no_shard", check);
    const Stopwatch clock;
    const int64_t alarms = bench.train_clean(steps);
    if (world.rank() == 0)
      std::printf("%s: %ld steps, %ld alarms, %.0f s\n", name, static_cast<long>(steps),
                  static_cast<long>(alarms), clock.seconds());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace zea::testing

int main(int argc, char** argv) {
  zea::World world(&argc, &argv);
  try {
    zea::testing::run(world, {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
