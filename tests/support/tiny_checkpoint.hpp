// SPDX-License-Identifier: Apache-2.0
// Common parts of tests of checkpoints: layouts of the tiny model on the ranks of the program,
// states that are functions of their position, a directory that all ranks know, and a disk that is
// full for one rank.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <optional>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"

namespace zea {

using testing::FilledSource;
using testing::tiny_llava_config;

/// Degrees of one module.
struct Degrees {
  int tp = 1, cp = 1;
};

struct Layout {
  std::string name;
  int ranks, dp_replicate;
  std::string vision, llm;  ///< strategies
  Degrees vision_grid = {}, llm_grid = {};
};

inline const std::vector<Layout> kLayouts = {
    {"one", 1, 1, "full_shard", "full_shard"},
    {"full2", 2, 1, "full_shard", "full_shard"},
    {"none2", 2, 1, "no_shard", "no_shard"},
    {"mixed2", 2, 1, "no_shard", "full_shard"},
    {"full3", 3, 1, "full_shard", "full_shard"},
    {"none3", 3, 1, "no_shard", "no_shard"},
    {"tp2", 2, 1, "full_shard", "full_shard", {}, {.tp = 2}},
    {"full4", 4, 1, "full_shard", "full_shard"},
    {"hybrid4", 4, 2, "hybrid_shard", "hybrid_shard"},
    {"mixed4", 4, 2, "hybrid_shard_zero2", "no_shard"},
    {"tp4", 4, 1, "no_shard", "full_shard", {.tp = 2}, {.tp = 4}},
    {"cp2tp2", 4, 1, "full_shard", "full_shard", {.tp = 1, .cp = 2}, {.tp = 2, .cp = 2}},
};

/// A directory for all ranks of this program. Collective.
struct SharedDirectory : testing::SharedDirectory {
  SharedDirectory() : testing::SharedDirectory(testing::world().communicator()) {}
};

struct Deck {
  std::string precision = "fp32";
  bool train_vision = true;
  bool tied = true;
  bool train_llm = true;
  bool reads_once = false;  ///< one copy of a module is read, others are sent it
  bool phi3 = false;        ///< files have q, k, v in one tensor, and gate, up
  bool adapts = false;      ///< adapters train in place of their linears
};

/// Returns a config with a vocabulary that tp pads, and fewer KV heads than tp ranks of the widest
/// layout.
inline std::string config_of(const Deck& deck) {
  return tiny_llava_config(
      {.tied = deck.tied, .vocabulary = 41, .text = deck.phi3 ? "phi3" : "llama"});
}

inline Plan make_tiny_plan(const Layout& layout, const Deck& deck) {
  Options options;
  options.mesh.dp_replicate = layout.dp_replicate;
  options.meshes["vision"].strategy = layout.vision;
  options.meshes["llm"].strategy = layout.llm;
  options.meshes["vision"].tp = layout.vision_grid.tp;
  options.meshes["vision"].cp = layout.vision_grid.cp;
  options.meshes["llm"].tp = layout.llm_grid.tp;
  options.meshes["llm"].cp = layout.llm_grid.cp;
  options.precision.preset = deck.precision;
  options.encoders["vision"].train = deck.train_vision;
  options.llm.train = deck.train_llm;
  options.model.sync_module_states = deck.reads_once;
  if (deck.adapts) {
    options.llm.lora = {.targets = {"q_proj", "mlp.*"}, .rank = 3};
    options.encoders["vision"].lora = {.targets = {"*"}, .rank = 2};
  }
  return make_plan(options, config_of(deck), layout.ranks);
}

/// A layout at run time, on the first ranks of the program.
struct Running {
  Plan plan;
  Mesh mesh;
  std::unique_ptr<Collectives> control;
  Engine engine;

  Running(const Communicator& ranks, const Layout& layout, const Deck& deck)
      : plan(make_tiny_plan(layout, deck)),
        mesh(ranks, plan.mesh, make_mpi_collectives),
        control(make_mpi_collectives(ranks)),
        engine(plan, mesh, at::kCPU) {}
};

/// Calls action(running) on the ranks of `layout`.
template <class Action>
void run_on(const Layout& layout, const Deck& deck, Action action) {
  const Communicator ranks = testing::first_ranks(layout.ranks);
  if (ranks.size() == 0) return;
  Running running(ranks, layout, deck);
  action(running);
}

inline constexpr uint64_t kMasterSeed = 1, kExpAvgSeed = 2, kExpAvgSqSeed = 3;

/// The piece of a parameter that a tp rank holds; its padding is zero.
inline at::Tensor piece_of(const at::Tensor& values, const ParamShard& cut, int tp_rank) {
  if (cut.dim < 0) return values;
  const int64_t length = cut.shape[cut.dim], begin = tp_rank / cut.holders * length;
  const int64_t real = std::min(length, values.size(cut.dim) - begin);
  const at::Tensor piece = at::zeros(cut.shape, values.options());
  if (real > 0) piece.narrow(cut.dim, 0, real).copy_(values.narrow(cut.dim, begin, real));
  return piece;
}

/// Calls visit(flat position, expected values) for each parameter's piece on this rank, in the
/// master type.
template <class Visit>
void for_each_parameter(const Running& running, const FlatBuffer& buffer, uint64_t seed,
                        Visit visit) {
  const Plan& plan = running.plan;
  const int tp_rank = plan.mesh.coordinate(running.mesh.rank(), buffer.module).tp;
  const FilledSource source(plan.model, plan.config_json, seed);
  for (const FlatParam& member : buffer.params) {
    const ParamSpec& param = plan.model.params[member.param];
    const at::Tensor values = at::empty(param.shape, to_torch(plan.precision.master));
    Extent box = whole(param.shape);
    if (param.part.begin > 0) box.offset[param.part.dim] += param.part.begin;
    source.read(param.name, param.tensor_shape(), box, plan.precision.master, values.data_ptr());
    visit(member.offset, piece_of(values, plan.cuts[member.param], tp_rank).flatten());
  }
}

/// Returns the expected shard of a buffer: the whole buffer with zero padding, cut to the range.
inline at::Tensor expected(const Running& running, const ShardedBuffer& buffer, uint64_t seed) {
  const at::Tensor flat = at::zeros({std::max(buffer.range().end, buffer.layout().elements)},
                                    buffer.master().options());
  for_each_parameter(running, buffer.layout(), seed, [&](int64_t offset, const at::Tensor& values) {
    flat.narrow(0, offset, values.numel()).copy_(values);
  });
  return flat.slice(0, buffer.range().begin, buffer.range().end);
}

inline void fill(Running& running) {
  for (const auto& buffer : running.engine.buffers()) {
    buffer->master().copy_(expected(running, *buffer, kMasterSeed));
    if (!buffer->trainable()) continue;
    running.engine.state(*buffer, "exp_avg").copy_(expected(running, *buffer, kExpAvgSeed));
    running.engine.state(*buffer, "exp_avg_sq").copy_(expected(running, *buffer, kExpAvgSqSeed));
  }
}

inline void expect_filled(Running& running, const std::string& what) {
  for (const auto& buffer : running.engine.buffers()) {
    const std::string where = what + ": " + buffer->layout().name;
    EXPECT_TRUE(at::equal(buffer->master(), expected(running, *buffer, kMasterSeed))) << where;
    if (!buffer->trainable()) continue;
    EXPECT_TRUE(at::equal(running.engine.state(*buffer, "exp_avg"),
                          expected(running, *buffer, kExpAvgSeed)))
        << where;
    EXPECT_TRUE(at::equal(running.engine.state(*buffer, "exp_avg_sq"),
                          expected(running, *buffer, kExpAvgSqSeed)))
        << where;
  }
}

inline CheckpointRequest request(const std::string& directory, int64_t step) {
  return {directory,
          "run-1",
          {.step = step, .optimizer_step = 6, .samples = 50, .tokens = 900, .target_tokens = 80},
          "[run]\n"};
}

inline std::vector<Layout> layouts_of_this_run() {
  std::vector<Layout> layouts;
  for (const Layout& layout : kLayouts)
    if (layout.ranks <= testing::world().size()) layouts.push_back(layout);
  return layouts;
}

/// Lets this process write files of at most `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

}  // namespace zea
