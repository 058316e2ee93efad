// SPDX-License-Identifier: Apache-2.0
// A layout of four ranks for each way to shard a model, and a run of the tiny one on it: for
// properties of every axis rather than of every combination.
#pragma once

#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing {

struct AxisLayout {
  const char* name;
  int64_t tp = 1, cp = 1, pp = 1;
  const char* cp_mode = "ring";
  const char* schedule = "1f1b";
  bool sequence_parallel = true;  ///< with tp > 1
};

inline constexpr int kAxisRanks = 4;
// Ranks that tp, cp and pp leave are shards of full_shard.
inline constexpr AxisLayout kAxisLayouts[] = {
    {"full_shard"},
    {.name = "tp", .tp = 2},
    {.name = "tp, every rank all tokens", .tp = 2, .sequence_parallel = false},
    {.name = "cp, ring", .cp = 2},
    {.name = "cp, gathered keys", .cp = 2, .cp_mode = "allgather_kv"},
    {.name = "cp, ulysses", .cp = 2, .cp_mode = "ulysses"},
    {.name = "tp and cp", .tp = 2, .cp = 2},
    {.name = "pp, 1f1b", .pp = 2},
    {.name = "pp, zero bubble", .pp = 2, .schedule = "zero_bubble"},
    {.name = "pp and tp, zero bubble", .tp = 2, .pp = 2, .schedule = "zero_bubble"},
};

/// The language model and its encoder on such a layout; the embeddings are the head, too.
inline TinyRunOptions run_on(const AxisLayout& layout, const char* preset) {
  TinyRunOptions run = stopped_run_options(tiny_llava_config({.tied = true}));
  run.deck.precision.preset = preset;
  run.deck.mesh.schedule = layout.schedule;
  run.deck.meshes["llm"].pp = layout.pp;
  for (ModuleMeshOptions* mesh : {&run.deck.meshes["vision"], &run.deck.meshes["llm"]}) {
    mesh->strategy = "full_shard";
    mesh->tp = layout.tp;
    mesh->cp = layout.cp;
    if (layout.tp > 1) mesh->sequence_parallel = AutoOption::of(layout.sequence_parallel);
    if (layout.cp == 1) continue;
    mesh->cp_mode = layout.cp_mode;
    if (mesh->cp_mode != CpMode::Ulysses) mesh->cp_block = 8;
  }
  return run;
}

inline MemoryDataset axis_dataset() {
  return make_tiny_dataset(make_model_spec(tiny_llava_config({.tied = true})), 23, {1, 0, 2}, 5);
}

}  // namespace zea::testing
