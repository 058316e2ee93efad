// SPDX-License-Identifier: Apache-2.0
#include "estimate/memory_floor.hpp"

#include <algorithm>
#include <set>

namespace zea::detail {
namespace {

/// Bytes that a stage keeps of a microbatch.
struct StageBytes {
  int64_t before = 0;  ///< from its forward to its backward
  int64_t after = 0;   ///< from its backward to its deferred weight gradients
};

/// Saved tensors of units that are not recomputed as a whole, and inputs, each at one of the stages
/// of a stage group that read it.
StageBytes kept_by(const PipelineStage& stage, const std::vector<UnitBytes>& units,
                   const ModelSpec& model, const std::vector<Recompute>& recomputed,
                   std::set<int>& inputs) {
  StageBytes kept;
  for (const int unit : stage.units) {
    const auto u = static_cast<size_t>(unit);
    const int64_t saved =
        recomputed[u] == Recompute::Selective ? units[u].saved_selective : units[u].saved;
    kept.after += saved;
    if (recomputed[u] != Recompute::Full) kept.before += saved;
    if (units[u].saved == 0) continue;
    for (const UnitInput& input : model.units[u].inputs)
      if (inputs.insert(input.unit).second)
        kept.before += units[static_cast<size_t>(input.unit)].output;
  }
  return kept;
}

}  // namespace

int64_t least_bytes(const std::vector<UnitBytes>& units, const StagePasses& stages,
                    const ModelSpec& model, const std::vector<Recompute>& recomputed,
                    int64_t ranks) {
  double most = 0;
  for (size_t group = 0; group < stages.passes.size(); ++group) {
    std::vector<StageBytes> kept(stages.pipeline.stages.size());
    std::set<int> inputs;
    double owned = 0;
    for (const int stage : stages.pipeline.stage_groups[group].stages) {
      const PipelineStage& own = stages.pipeline.stages[static_cast<size_t>(stage)];
      kept[static_cast<size_t>(stage)] = kept_by(own, units, model, recomputed, inputs);
      for (const int unit : own.units) owned += units[static_cast<size_t>(unit)].owned;
    }
    int64_t live = 0, peak = 0;
    for (const Pass& pass : stages.passes[group]) {
      const StageBytes& own = kept[static_cast<size_t>(pass.stage)];
      if (pass.kind != PassKind::Forward && pass.kind != PassKind::BackwardWeight)
        live -= own.before;
      if (pass.kind == PassKind::Forward) live += own.before;
      if (pass.kind == PassKind::BackwardInput) live += own.after;
      if (pass.kind == PassKind::BackwardWeight) live -= own.after;
      peak = std::max(peak, live);
    }
    most = std::max(most, owned / static_cast<double>(ranks) + static_cast<double>(peak));
  }
  return static_cast<int64_t>(most);
}

}  // namespace zea::detail
