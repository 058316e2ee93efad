// SPDX-License-Identifier: Apache-2.0
// A run that is stopped on one layout goes on at any other: after loading, every weight and moment
// has the same bits, and training continues in fp64 within 1e-10 of never having stopped. Every
// grid of the table: test_resume_grids. Each of the first table's writers has every fifth of its
// readers; ZEA_RESUME_STRIDE=1: all.
#include <gtest/gtest.h>

#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_resume_layouts {
namespace {

/// Degrees of one module.
struct Degrees {
  int tp = 1, cp = 1;
  bool sequence_parallel = true;  ///< with tp > 1
  int pp = 1, virtual_stages = 1;
  int encoder_dp = 0;  ///< of an encoder on ranks of its own
};

struct Layout {
  int ranks;
  const char* strategy;
  int dp_replicate = 1;
  int64_t wrap_units = 1;
  Degrees llm = {}, vision = {};
  const char* placement = "shared";
  const char* schedule = "1f1b";
};

const Layout kWriters[] = {
    {4, "full_shard"}, {2, "no_shard"}, {6, "hybrid_shard", 3}, {3, "shard_grad_op", 1, 2}};

// Vocabularies that tp pads, KV heads that several tp ranks replicate, and vision encoders with
// another sharding, over the ranks that the language model leaves.
const Layout kGridWriters[] = {
    {4, "full_shard", 1, 1, {.tp = 2}, {}},
    {8, "hybrid_shard", 2, 2, {.tp = 2, .cp = 2}, {.tp = 2}},
    {4, "no_shard", 1, 1, {.tp = 4, .sequence_parallel = false}, {.tp = 2}},
};

// Modules on ranks of their own, and tied embeddings that two stages hold.
const Layout kPipelines[] = {
    {8, "full_shard", 1, 1, {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2}, "disjoint", "1f1b"},
    {6, "full_shard", 1, 1, {.pp = 2}, {.encoder_dp = 1}, "disjoint", "zero_bubble"},
    {2, "no_shard", 1, 1, {.pp = 2, .virtual_stages = 2}, {}, "shared", "interleaved_1f1b"},
    {6, "hybrid_shard", 3, 1, {}, {.encoder_dp = 1}, "colocated", "gpipe"},
};

std::vector<Layout> readers() {
  std::vector<Layout> all;
  for (int ranks : {1, 2, 3, 6, 8}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"})
      all.push_back({ranks, strategy});
    for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"})
      all.push_back({ranks, strategy, ranks % 2 == 0 ? 2 : 1});
  }
  all.push_back({3, "full_shard", 1, 0});
  return all;
}

std::vector<Layout> grid_readers() {
  return {{1, "full_shard"},
          {6, "hybrid_shard", 2},
          {4, "no_shard", 1, 1, {.tp = 2}, {.tp = 2}},
          {8, "full_shard", 1, 1, {.tp = 4, .cp = 2}, {.tp = 1, .cp = 2}},
          {6, "shard_grad_op", 1, 0, {.tp = 2, .cp = 3}, {.tp = 2, .sequence_parallel = false}},
          {3, "no_shard", 1, 1, {.cp = 3}, {.cp = 3}}};
}

std::string name_of(const Layout& layout) {
  const auto degrees = [](const Degrees& of) {
    return " tp" + std::to_string(of.tp) + " cp" + std::to_string(of.cp) +
           (of.sequence_parallel ? "" : " whole sequences") +
           (of.pp > 1 ? " pp" + std::to_string(of.pp) : "");
  };
  return std::to_string(layout.ranks) + " ranks " + layout.strategy + degrees(layout.llm) +
         " vision" + degrees(layout.vision) + ", " + layout.placement + ", " + layout.schedule;
}

struct Family {
  std::string config = tiny_llava_config({.tied = true, .kv_heads = 1, .vocabulary = 41});
  void (*remake)(ModelSpec&) = nullptr;
};

TinyRunOptions options_of(const Layout& layout, const Family& family) {
  TinyRunOptions run = stopped_run_options(family.config);
  if (family.remake != nullptr) run.remake = family.remake;
  run.deck.mesh.dp_replicate = layout.dp_replicate;
  run.deck.mesh.placement = layout.placement;
  run.deck.mesh.schedule = layout.schedule;
  for (ModuleMeshOptions* mesh : {&run.deck.meshes["vision"], &run.deck.meshes["llm"]}) {
    const Degrees& degrees = mesh == &run.deck.meshes["llm"] ? layout.llm : layout.vision;
    mesh->strategy = layout.strategy;
    mesh->wrap_units = layout.wrap_units;
    mesh->tp = degrees.tp;
    mesh->cp = degrees.cp;
    mesh->pp = degrees.pp;
    mesh->virtual_stages = degrees.virtual_stages;
    mesh->encoder_dp = degrees.encoder_dp;
    if (degrees.tp > 1) mesh->sequence_parallel = AutoOption::of(degrees.sequence_parallel);
    mesh->cp_block = degrees.cp > 1 ? 4 : mesh->cp_block;
  }
  return run;
}

class ResumeLayouts : public ::testing::Test {
 protected:
  void expect_all_resume(const Layout& writer, const std::vector<Layout>& readers) {
    const StoppedRun expected = run_on(writer, shared_ / std::to_string(written_++));
    shared_.barrier();
    for (const Layout& reader : readers) {
      SCOPED_TRACE(name_of(writer) + " read by " + name_of(reader));
      const Communicator ranks = first_ranks(reader.ranks);
      if (ranks.size() > 0)
        expect_resumes(ranks, make_mpi_collectives, dataset_, options_of(reader, family_),
                       expected);
    }
  }
  void take(const Family& family) {
    family_ = family;
    dataset_ = dataset_of(family);
  }

 private:
  /// Its rank 0 is in every layout, and compares.
  StoppedRun run_on(const Layout& writer, const std::string& directory) {
    const Communicator ranks = first_ranks(writer.ranks);
    if (ranks.size() == 0) return {.checkpoint = directory + "/step-00000003"};
    return run_through(ranks, make_mpi_collectives, dataset_, options_of(writer, family_),
                       directory);
  }

  const SharedDirectory shared_{testing::world().communicator()};
  static MemoryDataset dataset_of(const Family& family) {
    ModelSpec model = make_model_spec(family.config);
    if (family.remake != nullptr) family.remake(model);
    return make_tiny_dataset(model, 23, {1, 0, 2}, 5);
  }

  Family family_;
  MemoryDataset dataset_ = dataset_of(family_);
  int written_ = 0;
};

TEST_F(ResumeLayouts, AnyLayoutGoesOnWhereAnyOtherStopped) {
  for (size_t w = 0; w < std::size(kWriters); ++w) {
    std::vector<Layout> some;
    for (size_t r = w % resume_stride(); r < readers().size(); r += resume_stride())
      some.push_back(readers()[r]);
    expect_all_resume(kWriters[w], some);
  }
}

TEST_F(ResumeLayouts, GridsGoOnWhereOtherGridsStopped) {
  expect_all_resume(kWriters[0], grid_readers());
  for (const Layout& writer : kGridWriters) expect_all_resume(writer, grid_readers());
}

/// Special tensors of a family: fused, tied, merged.
TEST_F(ResumeLayouts, FamiliesGoOnWhereOtherLayoutsStopped) {
  const TinyLlava gemma3{.tied = true, .image_size = 24, .siglip = true, .gemma3 = true};
  const TinyLlava mistral3{.image_size = 24, .pixtral = true, .merges = true};
  for (const Family& family :
       {Family{tiny_llava_config(gemma3)}, Family{tiny_qwen2_5_vl_config(), shrink_images},
        Family{tiny_llava_config(mistral3)}}) {
    SCOPED_TRACE(family.config);
    take(family);
    expect_all_resume({4, "full_shard", 1, 1, {.tp = 2}, {.tp = 2}},
                      {{2, "no_shard"},
                       {3, "full_shard", 1, 1, {.cp = 3}, {}},
                       {6, "full_shard", 1, 1, {.pp = 2}, {.encoder_dp = 1}, "disjoint"}});
  }
}

TEST_F(ResumeLayouts, PipelinesGoOnWhereOthersStopped) {
  const std::vector<Layout> pipelines(std::begin(kPipelines), std::end(kPipelines));
  std::vector<Layout> readers = pipelines;
  readers.push_back({2, "full_shard"});
  readers.push_back({1, "no_shard"});
  for (const Layout& writer : pipelines) expect_all_resume(writer, readers);
  expect_all_resume({2, "full_shard"}, pipelines);
}

}  // namespace
}  // namespace zea::testing::test_resume_layouts
