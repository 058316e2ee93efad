// SPDX-License-Identifier: Apache-2.0
#include "estimate/grid_floors.hpp"

#include <algorithm>

#include "estimate/memory_estimate.hpp"

namespace zea::detail {

SearchFacts::SearchFacts(const Plan& plan, StepSamples made)
    : samples(std::move(made)),
      steps(samples),
      rows(samples, plan.model),
      memory(plan, full_microbatch(plan)) {}

GridFloors::Key GridFloors::kernel_key(size_t grids, bool with_cp) const {
  const GridChoice& decoder = search_.grids[grids].decoder;
  Key key{decoder.tp, decoder.ep, decoder.etp,
          decoder.cp > 1 ? 1 + static_cast<int64_t>(decoder.cp_mode) : 0};
  for (const GridChoice& encoder : search_.grids[grids].encoders) key.push_back(encoder.tp);
  if (with_cp) key.push_back(decoder.cp);
  return key;
}

std::vector<std::optional<double>> GridFloors::by_kernels() {
  std::vector<std::optional<double>> all(search_.grids.size());
  std::map<Key, std::vector<size_t>> alike;
  for (size_t g = 0; g < all.size(); ++g) alike[kernel_key(g, false)].push_back(g);
  for (const auto& [key, grids] : alike) {
    std::optional<Plan> plan;
    for (size_t i = 0; i < grids.size() && !plan; ++i) plan = search_.plan(grids[i]);
    if (!plan) continue;
    for (const size_t g : grids) {
      std::optional<RankSeconds>& known = kernels_[kernel_key(g, true)];
      if (!known)
        known = rank_seconds(*plan, search_.grids[g].decoder.cp, search_.facts->samples,
                             search_.facts->rows, search_.request.hardware);
      all[g] = seconds(g, {});
    }
  }
  return all;
}

double GridFloors::by_memory(size_t grids, int64_t limit) {
  const StagePasses* passes = passes_of(grids);
  if (passes == nullptr) return 0;
  std::optional<std::vector<UnitBytes>>& bytes = bytes_[kernel_key(grids, true)];
  if (!bytes)
    if (const std::optional<Plan> plan = search_.plan(grids))
      bytes = bytes_of_units(*plan, search_.facts->memory);
  if (!bytes) return 0;
  const LayoutGrids& layout = search_.grids[grids];
  const int64_t ranks = layout.replicas * layout.decoder.cp * layout.decoder.tp;
  std::vector<Recompute> recomputed;
  for (const AutoOption& choice : search_.recomputations) {
    ModelOptions options = search_.request.options.model;
    options.activation_checkpointing = choice;
    recomputed = recomputed_units(options, search_.model);
    if (least_bytes(*bytes, *passes, search_.model, recomputed, ranks) <= limit) break;
  }
  return seconds(grids, recomputed);
}

double GridFloors::seconds(size_t grids, const std::vector<Recompute>& recomputed) {
  return least_seconds(search_.grids[grids], *kernels_.at(kernel_key(grids, true)),
                       stages_of(grids), search_.model, search_.facts->rows, search_.request,
                       recomputed);
}

/// The decoder's stages; null where they are not known, or depend on more than their number.
const StageUnits* GridFloors::stages_of(size_t grids) {
  const LayoutGrids& layout = search_.grids[grids];
  if (layout.decoder.pp == 1 || search_.request.options.mesh.memory_mib > 0) return nullptr;
  StageUnits& known = stages_[{layout.placement == ModulePlacement::Shared ? 1 : 0,
                               layout.decoder.pp, layout.decoder.virtual_stages}];
  if (known.empty())
    if (const std::optional<Plan> plan = search_.plan(grids)) known = decoder_stages(*plan);
  return known.empty() ? nullptr : &known;
}

/// The decoder's stages and passes in a step of predicted_microbatches(); null where unknown.
const StagePasses* GridFloors::passes_of(size_t grids) {
  const LayoutGrids& layout = search_.grids[grids];
  const Options& options = search_.request.options;
  if (options.run.mode != RunMode::Train || search_.recomputations.front().is_auto() ||
      layout.placement != ModulePlacement::Shared || options.mesh.memory_mib > 0)
    return nullptr;
  const int64_t microbatches = predicted_microbatches(options, layout.replicas, layout.decoder.pp);
  std::optional<StagePasses>& known =
      passes_[{layout.decoder.pp, layout.decoder.virtual_stages,
               static_cast<int64_t>(layout.schedule), microbatches}];
  if (!known)
    if (std::optional<Plan> plan = search_.plan(grids)) {
      known.emplace().passes =
          passes_of_groups(plan->pipeline, search_.model, static_cast<int>(microbatches), false);
      known->pipeline = std::move(plan->pipeline);
    }
  return known ? &*known : nullptr;
}

}  // namespace zea::detail
