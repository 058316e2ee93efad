// SPDX-License-Identifier: Apache-2.0
#include "support/expert_layout.hpp"

#include <algorithm>
#include <set>

namespace zea::testing {

TinyRunOptions on_layout(TinyRunOptions run, const ExpertLayout& layout) {
  run.deck.mesh.dp_replicate = layout.dp_replicate;
  for (const char* module : {"vision", "llm"}) {
    ModuleMeshOptions& mesh = run.deck.meshes[module];
    mesh.strategy = layout.strategy;
    mesh.tp = module == kDecoder ? layout.tp : std::min<int64_t>(layout.tp, 2);
    mesh.cp = layout.cp;
    if (layout.tp > 1) mesh.sequence_parallel = AutoOption::of(layout.sequence_parallel);
    if (layout.cp > 1) mesh.cp_mode = layout.cp_mode;
    if (layout.cp > 1 && mesh.cp_mode != CpMode::Ulysses) mesh.cp_block = 4;
    if (mesh.cp_mode == CpMode::UlyssesRing) mesh.cp_ulysses_ranks = 2;
  }
  run.deck.meshes["llm"].ep = layout.ep;
  run.deck.meshes["llm"].etp = layout.etp;
  if (layout.subgroup > 0)
    run.deck.meshes["llm"].reshard_after_forward = AutoOption::of_count(layout.subgroup);
  if (layout.ep > 1) run.deck.meshes["llm"].ep_dispatch = layout.dispatch;
  run.deck.meshes["llm"].pp = layout.pp;
  return run;
}

void zero_routers(Engine& engine) {
  const ModelSpec& model = engine.plan().model;
  std::set<int> routers;
  for (const UnitSpec& unit : model.units)
    for (const char* role : {"router.weight", "router.bias"})
      if (unit.has(role))
        for (const int param : model.params_of(unit, role)) routers.insert(param);
  for (const auto& buffer : engine.buffers()) {
    if (!buffer) continue;
    for (const FlatPart& part : parts_in_range(buffer->layout(), buffer->range()))
      if (routers.contains(part.param))
        buffer->master().narrow(0, part.flat_begin - buffer->range().begin, part.elements).zero_();
  }
  engine.broadcast_weights();
}

}  // namespace zea::testing
