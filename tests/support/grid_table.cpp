// SPDX-License-Identifier: Apache-2.0
#include "support/grid_table.hpp"

#include "schedule/plan.hpp"

namespace zea::testing {
namespace {

constexpr const char *kGather = "allgather_kv", *kRing = "ring", *kUlysses = "ulysses",
                     *kTwoLevel = "ulysses_ring";
constexpr const char *kUniform = "uniform", *kZigzag = "zigzag", *kMakespan = "makespan_min";

/// Without sequence parallel.
constexpr GridModule whole(GridModule module) {
  module.sequence_parallel = false;
  return module;
}

/// Sets the number of tp_chunks.
constexpr GridModule in_chunks(int chunks, GridModule module) {
  module.chunks = chunks;
  return module;
}

// clang-format off
const Grid kGrids[] = {
    // llm tp, cp; its strategy; replicas; vision, where it lies otherwise; heads, where not 4;
    // audio, where it lies otherwise than vision
    {{1, 1}, "shard_grad_op", 2},
    {{2, 1}, "full_shard"},
    {whole({2, 1}), "no_shard", 1, {{1, 2, kUlysses, kZigzag}}, "full_shard"},
    {{1, 2, kRing, kMakespan}, "full_shard"},
    {{1, 2, kGather, kZigzag}, "no_shard", 1, {{2, 1}}, "full_shard"},
    {{1, 3, kUlysses, kUniform}, "hybrid_shard", 1, {}, "", 6},
    {{1, 2, kUlysses, kMakespan}, "hybrid_shard", 2, {{1, 1}}, "no_shard"},
    {{1, 4, kUlysses, kUniform}, "no_shard", 1, {whole({2, 2, kRing, kZigzag})}, "no_shard"},
    {{1, 4, kTwoLevel, kUniform}, "shard_grad_op", 1, {{4, 1}}, "full_shard"},
    {{1, 4, kRing, kUniform}, "full_shard", 1, {{1, 2, kGather, kMakespan}}, "no_shard"},
    {{1, 4, kTwoLevel, kMakespan}, "no_shard", 1, {whole({2, 2, kRing, kUniform})}, "no_shard"},
    {{1, 4, kGather, kMakespan}, "full_shard", 1, {{1, 1}}, "full_shard"},
    {{2, 2, kGather, kMakespan}, "full_shard"},
    {{2, 2, kRing, kZigzag}, "full_shard", 1, {{1, 1}}, "full_shard"},
    {whole({4, 1}), "shard_grad_op", 1, {{1, 4, kRing, kMakespan}}, "full_shard"},
    {{1, 3, kRing, kUniform}, "full_shard", 2},
    {in_chunks(2, whole({2, 3, kGather, kUniform})), "hybrid_shard", 1, {{1, 3, kRing, kMakespan}}, "no_shard"},
    {in_chunks(4, {2, 3, kRing, kMakespan}), "no_shard", 1, {{1, 3, kGather, kZigzag}}, "no_shard"},
    {whole({2, 3, kRing, kZigzag}), "shard_grad_op", 1, {whole({2, 1})}, "full_shard"},
    {whole({2, 3, kRing, kMakespan}), "full_shard", 1, {{1, 2, kUlysses, kUniform}}, "no_shard"},
    {whole({2, 3, kGather, kZigzag}), "full_shard", 1, {{1, 3, kGather, kUniform}}, "full_shard"},
    {whole({2, 3, kRing, kMakespan}), "shard_grad_op", 1, {{1, 3, kRing, kUniform}}, "full_shard"},
    {{2, 3, kRing, kZigzag}, "shard_grad_op", 1, {{2, 1}}, "no_shard"},
    {{1, 4, kTwoLevel, kUniform}, "shard_grad_op", 2, {{2, 2, kUlysses, kZigzag}}, "hybrid_shard_zero2"},
    {{1, 4, kGather, kZigzag}, "full_shard", 2, {{1, 2, kUlysses, kUniform}}, "full_shard"},
    {{2, 2, kUlysses, kMakespan}, "no_shard", 2, {{1, 4, kTwoLevel, kUniform}}, "shard_grad_op"},
    {whole({2, 2, kUlysses, kMakespan}), "shard_grad_op", 2, {{1, 4, kGather, kUniform}}, "hybrid_shard_zero2"},
    {whole({2, 4, kRing, kMakespan}), "hybrid_shard", 1, {{4, 2, kRing, kUniform}}, "hybrid_shard"},
    {{2, 4, kTwoLevel, kZigzag}, "full_shard", 1, {whole({4, 2, kGather, kMakespan})}, "full_shard"},
    {whole({2, 4, kTwoLevel, kZigzag}), "hybrid_shard", 1, {{1, 4, kTwoLevel, kMakespan}}, "hybrid_shard_zero2"},
    {{2, 4, kUlysses, kUniform}, "hybrid_shard", 1, {whole({4, 2, kUlysses, kZigzag})}, "hybrid_shard", 8},
    {in_chunks(2, {2, 4, kTwoLevel, kMakespan}), "no_shard"},
    {in_chunks(4, {4, 1}), "hybrid_shard", 2, {in_chunks(3, {2, 2, kGather, kUniform})}, "no_shard"},
    {in_chunks(4, whole({4, 1})), "full_shard", 2, {in_chunks(2, whole({2, 1}))}, "full_shard"},
    {{4, 1}, "full_shard", 2, {{1, 4, kTwoLevel, kMakespan}}, "no_shard"},
    {{4, 2, kGather, kUniform}, "shard_grad_op", 1, {whole({2, 4, kGather, kZigzag})}, "no_shard"},
    {whole({4, 2, kUlysses, kZigzag}), "no_shard", 1, {{2, 2, kUlysses, kMakespan}}, "no_shard", 8},
    {whole({4, 2, kRing, kMakespan}), "full_shard", 1, {whole({2, 4, kTwoLevel, kZigzag})}, "full_shard"},
    {in_chunks(2, {4, 2, kGather, kMakespan}), "no_shard", 1, {{4, 1}}, "shard_grad_op"},
    {in_chunks(4, {4, 2, kUlysses, kZigzag}), "full_shard", 1, {{2, 4, kRing, kZigzag}}, "full_shard", 8},
    {whole({4, 2, kGather, kZigzag}), "shard_grad_op"},
    {whole({4, 2, kGather, kUniform}), "shard_grad_op", 1, {{2, 4, kTwoLevel, kMakespan}}, "full_shard"},
    {{4, 2, kGather, kMakespan}, "hybrid_shard", 1, {{1, 4, kUlysses, kZigzag}}, "no_shard"},
    {{1, 2, kRing, kZigzag}, "full_shard", 1, {{1, 1}}, "no_shard", 4, {{2, 1}}, "full_shard"},
    {{2, 2, kGather, kZigzag}, "full_shard", 1, {{4, 1}}, "no_shard", 4, {{1, 4, kRing, kMakespan}}, "shard_grad_op"},
    {{2, 2, kRing, kZigzag}, "full_shard", 2, {{1, 2, kGather, kUniform}}, "no_shard", 4, {whole({2, 1})}, "no_shard"},
};
// clang-format on

const RefusedGrid kRefused[] = {
    {"ulysses among 3 ranks with 4 heads", 3,
     [](Options& o) {
       o.meshes["llm"].cp = 3;
       o.meshes["llm"].cp_mode = kUlysses;
     },
     "mesh.llm.cp = 3 with cp_mode = \"ulysses\": each rank takes an equal part of the 4 heads (2 "
     "KV heads) of 1 tp ranks; allowed: 1, 2, 4, or cp_mode = \"allgather_kv\" or \"ring\""},
    {"ulysses with a head per tp rank", 8,
     [](Options& o) {
       o.meshes["llm"].tp = 4;
       o.meshes["llm"].cp = 2;
       o.meshes["llm"].cp_mode = kUlysses;
     },
     "mesh.llm.cp = 2 with cp_mode = \"ulysses\": each rank takes an equal part of the 4 heads (2 "
     "KV heads) of 4 tp ranks; allowed: 1, or cp_mode"},
    {"ulysses inside a ring, with a head per tp rank", 8,
     [](Options& o) {
       o.meshes["llm"].tp = 4;
       o.meshes["llm"].cp = 4;
       o.meshes["llm"].cp_mode = kTwoLevel;
       o.meshes["llm"].cp_ulysses_ranks = 2;
     },
     "mesh.llm.cp_ulysses_ranks = 2 with cp_mode = \"ulysses_ring\": each rank takes an equal "
     "part"},
    {"tp 3 with 4 heads", 3, [](Options& o) { o.meshes["llm"].tp = 3; },
     "mesh.llm.tp = 3 does not divide the 4 heads or rows of "
     "language_model.model.layers.0.self_attn.q_proj.weight; allowed: 1, 2, 4"},
    {"more tp ranks than heads", 8, [](Options& o) { o.meshes["llm"].tp = 8; },
     "mesh.llm.tp = 8 does not divide the 4 heads or rows of"},
    {"vision tp beyond its heads", 8,
     [](Options& o) {
       o.meshes["llm"].tp = 4;
       o.meshes["llm"].cp = 2;
       o.meshes["vision"].tp = 8;
     },
     "mesh.vision.tp = 8 does not divide the 4 heads or rows of "
     "vision_tower.encoder.layers.0.self_attn.q_proj.weight; allowed: 1, 2, 4"},
    {"vision on more ranks than a replica has", 2, [](Options& o) { o.meshes["vision"].tp = 2; },
     "mesh.vision: tp (2) x cp (1) must divide the 1 ranks of a replica, which are tp x cp of "
     "[mesh.llm]; its items are dealt to what is left over"},
    {"vision on a part that does not divide", 6,
     [](Options& o) {
       o.meshes["llm"].tp = 2;
       o.meshes["llm"].cp = 3;
       o.meshes["vision"].tp = 4;
     },
     "mesh.vision: tp (4) x cp (1) must divide the 6 ranks of a replica"},
    {"replicas that do not fill the ranks", 8, [](Options& o) { o.meshes["llm"].cp = 3; },
     "x ranks of a replica (3) must be the world size 8"},
    {"two levels of one group", 2,
     [](Options& o) {
       o.meshes["llm"].cp = 2;
       o.meshes["llm"].cp_mode = kTwoLevel;
       o.meshes["llm"].cp_ulysses_ranks = 2;
     },
     "mesh.llm.cp_mode = \"ulysses_ring\" with cp = 2 and cp_ulysses_ranks = 2: groups of 2 or "
     "more "
     "must divide cp and be smaller; for one group use \"ulysses\""},
    {"two levels without groups", 4,
     [](Options& o) {
       o.meshes["llm"].cp = 4;
       o.meshes["llm"].cp_mode = kTwoLevel;
     },
     "mesh.llm.cp_mode = \"ulysses_ring\" with cp = 4 and cp_ulysses_ranks = 0"},
    {"groups of a single level", 4,
     [](Options& o) {
       o.meshes["llm"].cp = 4;
       o.meshes["llm"].cp_mode = kRing;
       o.meshes["llm"].cp_ulysses_ranks = 2;
     },
     "mesh.llm.cp_ulysses_ranks = 2 with cp_mode = \"ring\", which has one level; leave it out"},
    {"a block where no blocks are dealt", 2,
     [](Options& o) {
       o.meshes["llm"].cp = 2;
       o.meshes["llm"].cp_distribution = kUniform;
       o.meshes["llm"].cp_block = 64;
     },
     "mesh.llm.cp_block = 64 with cp_distribution = \"uniform\", which deals no blocks; leave it "
     "out, or use \"makespan_min\""},
    {"a block where heads are exchanged", 2,
     [](Options& o) {
       o.meshes["llm"].cp = 2;
       o.meshes["llm"].cp_mode = kUlysses;
       o.meshes["llm"].cp_block = 64;
     },
     "mesh.llm.cp_block = 64 with cp_mode = \"ulysses\", in which ranks share attention by heads "
     "and hold runs of equal length, not blocks; leave it out"},
    {"full_shard over replicas", 4,
     [](Options& o) {
       o.meshes["llm"].cp = 2;
       o.mesh.dp_replicate = 2;
     },
     "mesh.llm.strategy = \"full_shard\" has one copy over all data-parallel ranks"},
    {"a subgroup beyond the ranks that share a copy", 4,
     [](Options& o) {
       o.meshes["llm"].cp = 2;
       o.meshes["llm"].reshard_after_forward = AutoOption::of_count(4);
     },
     "mesh.llm.reshard_after_forward = 4 must divide the 4 ranks that share a copy (mesh.dp_shard "
     "= "
     "2, times encoder_dp x cp of the module) and be smaller"},
    {"GPT-2's heads over ranks that do not divide them", 3,
     [](Options& o) { o.meshes["llm"].tp = 3; },
     "mesh.llm.tp = 3 does not divide the 4 heads or rows of transformer.h.0.attn.c_attn.weight",
     true},
    {"both ways in a model without images", 2,
     [](Options& o) { o.llm.image_attention = "bidirectional"; },
     "model.llm.image_attention = \"bidirectional\", but the model (gpt2) has no encoder of images",
     true},
};

void apply(const GridModule& module, const char* strategy, ModuleMeshOptions& mesh) {
  mesh.tp = module.tp;
  mesh.cp = module.cp;
  mesh.strategy = strategy;
  if (module.cp > 1) {
    mesh.cp_mode = module.mode;
    mesh.cp_distribution = module.distribution;
    if (module.mode == std::string(kTwoLevel)) mesh.cp_ulysses_ranks = 2;
    const bool deals_blocks = module.mode != std::string(kUlysses);
    if (deals_blocks && module.distribution == std::string(kMakespan)) mesh.cp_block = kGridBlock;
  }
  if (module.tp == 1) return;
  mesh.sequence_parallel = AutoOption::of(module.sequence_parallel);
  mesh.tp_chunks = module.chunks;
}

std::string name_of(const GridModule& module, const char* strategy) {
  std::string name = "tp " + std::to_string(module.tp);
  if (module.tp > 1 && !module.sequence_parallel) name += " without sequence parallel";
  if (module.chunks > 1) name += " in " + std::to_string(module.chunks) + " chunks";
  name += " x cp " + std::to_string(module.cp);
  if (module.cp > 1) name += std::string(" (") + module.mode + ", " + module.distribution + ")";
  return name + ", " + strategy;
}

}  // namespace

std::string Grid::name() const {
  std::string name = name_of(llm, strategy);
  if (replicas > 1) name = std::to_string(replicas) + " replicas of " + name;
  if (vision) name += "; vision " + name_of(*vision, vision_strategy);
  return audio ? name + "; audio " + name_of(*audio, audio_strategy) : name;
}

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all(std::begin(kGrids), std::end(kGrids));
  return all;
}

void apply(const Grid& grid, Options& deck) {
  const bool is_hybrid = std::string(grid.strategy).starts_with("hybrid");
  deck.mesh.dp_replicate = is_hybrid ? grid.replicas : 1;
  apply(grid.llm, grid.strategy, deck.meshes["llm"]);
  apply(grid.vision.value_or(grid.llm), grid.vision ? grid.vision_strategy : grid.strategy,
        deck.meshes["vision"]);
  deck.meshes["audio"] = deck.meshes["vision"];
  if (!grid.audio) return;
  deck.meshes["audio"] = {};
  apply(*grid.audio, grid.audio_strategy, deck.meshes["audio"]);
}

TinyLlava model_for(const Grid& grid, TinyLlava model) {
  model.heads = model.vision_heads = model.audio_heads = grid.heads;
  if (grid.heads == 6 && model.kv_heads == 2) model.kv_heads = 3;
  model.vision_hidden = model.pixtral ? 48 : 24;  // its heads turn by rows and columns
  return model;
}

MeshShape mesh_of(const Grid& grid) {
  Options deck;
  apply(grid, deck);
  return make_plan(deck, tiny_llava_config(model_for(grid, {.audio = true})), grid.ranks()).mesh;
}

const std::vector<RefusedGrid>& refused_grids() {
  static const std::vector<RefusedGrid> all(std::begin(kRefused), std::end(kRefused));
  return all;
}

}  // namespace zea::testing
