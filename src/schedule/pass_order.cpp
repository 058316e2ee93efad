// SPDX-License-Identifier: Apache-2.0
// The order of passes at a stage group: warm-up forwards, then a backward after each forward, then
// the remaining backwards. The number of warm-up forwards follows from the stage groups that read
// its outputs, the last stage first: the inputs of everything that a reader computes before the
// backward of a microbatch are computed before that backward here, so no two stage groups wait for
// each other.
#include <algorithm>

#include "core/error.hpp"
#include "schedule/pipeline.hpp"

namespace zea {
namespace {

/// Passes of a stage group in one direction, in order. With several stages at a stage group
/// microbatches come in rounds of as many as there are such stage groups; `microbatch` may lie
/// beyond the last one of a round that is not full (such a pass keeps the stage groups in step, and
/// is left out in the end).
struct RoundPass {
  int stage;
  int microbatch;
};

class PassOrder {
 public:
  PassOrder(const Pipeline& pipeline, const ModelSpec& model, int microbatches)
      : pipeline_(pipeline), microbatches_(microbatches), ahead_(pipeline.stages.size(), 0) {
    for (size_t p = 0; p < pipeline.stage_groups.size(); ++p)
      if (pipeline.stage_groups[p].stages.size() > 1) chunked_.push_back(static_cast<int>(p));
    std::sort(chunked_.begin(), chunked_.end(), [&](int a, int b) {
      return pipeline.stage_groups[a].stages.front() < pipeline.stage_groups[b].stages.front();
    });
    find_readers(model);
    for (size_t s = ahead_.size(); s-- > 0;) find_ahead(static_cast<int>(s));
  }

  std::vector<Pass> forwards(int group) const {
    std::vector<Pass> passes;
    for (const RoundPass& pass : passes_in_rounds(group, false))
      emit(passes, PassKind::Forward, pass);
    return passes;
  }

  std::vector<Pass> training(int group) const {
    return pipeline_.is_one_group() ? one_by_one(group) : overlapped(group);
  }

 private:
  std::vector<Pass> one_by_one(int group) const {
    const std::vector<int>& stages = stages_at(group);
    std::vector<Pass> passes;
    for (int m = 0; m < microbatches_; ++m) {
      for (int stage : stages) passes.push_back({PassKind::Forward, stage, m});
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
        passes.push_back({PassKind::Backward, *stage, m});
    }
    return passes;
  }

  std::vector<Pass> overlapped(int group) const {
    const std::vector<RoundPass> forward = passes_in_rounds(group, false),
                                 backward = passes_in_rounds(group, true);
    const bool splits = pipeline_.schedule == PipelineSchedule::ZeroBubble;
    const size_t total = forward.size();
    const size_t warm_up = std::min<size_t>(total, warm_up_of(group));
    const size_t lag = splits ? lag_of(group) : 0;
    std::vector<Pass> passes;
    for (size_t i = 0; i < warm_up; ++i) emit(passes, PassKind::Forward, forward[i]);
    for (size_t i = 0; i < total; ++i) {
      if (warm_up + i < total) emit(passes, PassKind::Forward, forward[warm_up + i]);
      emit(passes, splits ? PassKind::BackwardInput : PassKind::Backward, backward[i]);
      if (splits && i >= lag) emit(passes, PassKind::BackwardWeight, backward[i - lag]);
    }
    for (size_t i = splits ? total - std::min(lag, total) : total; i < total; ++i)
      emit(passes, PassKind::BackwardWeight, backward[i]);
    return passes;
  }

  const std::vector<int>& stages_at(int group) const {
    return pipeline_.stage_groups[group].stages;
  }
  bool has_several(int group) const { return stages_at(group).size() > 1; }

  /// For each stage that is alone at its stage group, those of other stage groups that read its
  /// outputs.
  void find_readers(const ModelSpec& model) {
    readers_.resize(pipeline_.stages.size());
    is_reader_.resize(pipeline_.stages.size(), false);
    for (size_t u = 0; u < model.units.size(); ++u) {
      const int to = pipeline_.stage_of_unit[u];
      for (const UnitInput& input : model.units[u].inputs) {
        const int from = pipeline_.stage_of_unit[input.unit];
        if (pipeline_.stages[from].group == pipeline_.stages[to].group) continue;
        if (has_several(pipeline_.stages[from].group)) continue;
        readers_[from].push_back(to);
        is_reader_[to] = true;
      }
    }
  }

  /// The forwards of `stage` that are ahead of its backwards: of m + 1 + ahead microbatches, at
  /// most, before the backward of microbatch m. One more than with any reader.
  void find_ahead(int stage) {
    const int group = pipeline_.stages[stage].group;
    if (has_several(group)) {
      if (is_reader_[stage]) ahead_[stage] = ahead_among_several(stage);
      return;
    }
    for (int reader : readers_[stage]) ahead_[stage] = std::max(ahead_[stage], ahead_[reader] + 1);
  }

  int ahead_among_several(int stage) const {
    int made = 0, ahead = 0;
    for (const Pass& pass : overlapped(pipeline_.stages[stage].group)) {
      if (pass.stage != stage) continue;
      if (pass.kind == PassKind::Forward) ++made;
      if (pass.kind == PassKind::Backward || pass.kind == PassKind::BackwardInput)
        ahead = std::max(ahead, made - pass.microbatch - 1);
    }
    return ahead;
  }

  /// Among the stage groups with several stages (arXiv:2104.04473).
  int rank_of(int group) const {
    return static_cast<int>(std::find(chunked_.begin(), chunked_.end(), group) - chunked_.begin());
  }

  size_t warm_up_of(int group) const {
    if (pipeline_.schedule == PipelineSchedule::GPipe) return static_cast<size_t>(-1);
    if (!has_several(group)) return static_cast<size_t>(ahead_[stages_at(group).front()]);
    const size_t after = chunked_.size() - 1 - rank_of(group);
    return 2 * after + (stages_at(group).size() - 1) * chunked_.size();
  }

  /// How many weight gradients wait: none at the first stage group, one more at each that follows.
  /// So what is kept for them where few forwards are ahead is no more than the forwards ahead at
  /// the first stage group.
  size_t lag_of(int group) const {
    if (has_several(group)) return static_cast<size_t>(rank_of(group));
    const int deepest = *std::max_element(ahead_.begin(), ahead_.end());
    return static_cast<size_t>(deepest - ahead_[stages_at(group).front()]);
  }

  std::vector<RoundPass> passes_in_rounds(int group, bool backward) const {
    const std::vector<int>& stages = stages_at(group);
    const int several = static_cast<int>(stages.size());
    // One stage, or one stage group: a round is a microbatch.
    const int round = several > 1 ? static_cast<int>(chunked_.size()) : 1;
    std::vector<RoundPass> passes;
    for (int first = 0; first < microbatches_; first += round)
      for (int s = 0; s < several; ++s)
        for (int i = 0; i < round; ++i)
          passes.push_back({stages[backward ? several - 1 - s : s], first + i});
    return passes;
  }

  void emit(std::vector<Pass>& passes, PassKind kind, const RoundPass& pass) const {
    if (pass.microbatch < microbatches_) passes.push_back({kind, pass.stage, pass.microbatch});
  }

  const Pipeline& pipeline_;
  int microbatches_;
  std::vector<int> ahead_;                 ///< of each stage
  std::vector<std::vector<int>> readers_;  ///< of each stage that is alone at its stage group
  std::vector<bool> is_reader_;            ///< each stage, of such a one
  std::vector<int> chunked_;  ///< the stage groups with several stages, in the order of the walk
};

}  // namespace

std::vector<Pass> passes_of_group(const Pipeline& pipeline, const ModelSpec& model, int group,
                                  int microbatches, bool forward_only) {
  ZEA_ASSERT(group >= 0 && group < static_cast<int>(pipeline.stage_groups.size()));
  const PassOrder order(pipeline, model, microbatches);
  return forward_only ? order.forwards(group) : order.training(group);
}

std::vector<std::vector<Pass>> passes_of_groups(const Pipeline& pipeline, const ModelSpec& model,
                                                int microbatches, bool forward_only) {
  const PassOrder order(pipeline, model, microbatches);
  std::vector<std::vector<Pass>> passes;
  for (int group = 0; group < std::ssize(pipeline.stage_groups); ++group)
    passes.push_back(forward_only ? order.forwards(group) : order.training(group));
  return passes;
}

}  // namespace zea
