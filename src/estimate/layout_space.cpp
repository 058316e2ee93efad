// SPDX-License-Identifier: Apache-2.0
// The layouts that a search tries.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "estimate/layout_search.hpp"
#include "layout/flat_layout.hpp"
#include "layout/mesh_shape.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kLeastTokens = 256;  ///< of a row on a cp rank
constexpr int64_t kMostSplits = 8;     ///< of ranks between two encoders

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0) found.push_back(divisor);
  return found;
}

bool shares_experts(const GridChoice& decoder, int64_t dp_shard) {
  const int64_t over_tp = decoder.etp == 1 ? decoder.tp : 1;
  return divides_ranks(over_tp, decoder.cp, dp_shard, decoder.ep);
}

/// The keys that a deck leaves open, with the values to try.
class LayoutSpace {
 public:
  LayoutSpace(const SearchRequest& request, const ModelSpec& model)
      : request_(request), options_(request.options), model_(model) {}

  std::vector<LayoutGrids> grids() {
    for (const ModulePlacement placement : placements())
      for (const GridChoice& decoder : decoder_grids())
        for (const PipelineSchedule schedule : schedules(placement, decoder))
          for (const int64_t virtual_stages : virtual_stages(schedule, decoder))
            add(placement, schedule, decoder, virtual_stages);
    return std::move(grids_);
  }

 private:
  bool is_kept(const std::string& path) const { return options_.given.contains(path); }
  bool is_kept(const std::string& module, const char* key) const {
    return is_kept("mesh." + module + "." + key);
  }
  const ModuleMeshOptions& mesh_of(const std::string& module) const {
    return options_.meshes[module];
  }

  std::vector<ModulePlacement> placements() const {
    if (is_kept("mesh.placement")) return {options_.mesh.placement};
    if (model_.encoders.empty()) return {ModulePlacement::Shared};
    std::vector<ModulePlacement> all{ModulePlacement::Shared, ModulePlacement::Disjoint};
    if (model_.encoders.size() > 1) all.push_back(ModulePlacement::Colocated);
    return all;
  }

  std::vector<int64_t> degrees(const std::string& module, const char* key, int64_t given,
                               int64_t most) const {
    if (is_kept(module, key)) return {given};
    std::vector<int64_t> all;
    for (int64_t degree = 1; degree <= most; degree *= 2) all.push_back(degree);
    for (const int64_t degree : divisors(request_.ranks))
      if (degree <= most && std::ranges::count(all, degree) == 0) all.push_back(degree);
    std::ranges::sort(all);
    return all;
  }

  int64_t blocks(const std::string& module) const {
    return std::ranges::count_if(model_.units, [&](const UnitSpec& unit) {
      return unit.module == module && unit.kind == UnitKind::Block;
    });
  }

  int64_t query_heads(const std::string& module) const {
    return model_.block(module).attention().heads.query;
  }

  /// Stages as pp or a template says.
  std::vector<int64_t> stages() const {
    const ModuleMeshOptions& mesh = mesh_of(kDecoder);
    if (!mesh.stages.empty()) return {pipeline_ranks(mesh)};
    return degrees(kDecoder, "pp", mesh.pp, std::min<int64_t>(blocks(kDecoder), request_.ranks));
  }

  std::vector<CpMode> cp_modes(int64_t cp) const {
    const ModuleMeshOptions& mesh = mesh_of(kDecoder);
    if (is_kept(kDecoder, "cp_mode") || is_kept(kDecoder, "cp_ulysses_ranks") || cp == 1)
      return {mesh.cp_mode};
    return {CpMode::AllGatherKv, CpMode::Ring, CpMode::Ulysses};
  }

  /// Ranks that share experts.
  std::vector<int64_t> expert_degrees() const {
    if (is_kept(kDecoder, "ep") || !model_.has_experts()) return {mesh_of(kDecoder).ep};
    std::vector<int64_t> all{1};
    for (int64_t ep = 2; ep <= request_.ranks; ep *= 2)
      if (divides_experts(model_, ep)) all.push_back(ep);
    return all;
  }

  /// Whether tp ranks shard experts or hold whole ones.
  std::vector<int64_t> expert_tp(int64_t tp, int64_t ep) const {
    if (is_kept(kDecoder, "etp")) return {mesh_of(kDecoder).etp};
    return tp > 1 && ep % tp == 0 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0};
  }

  std::vector<GridChoice> decoder_grids() const {
    const ModuleMeshOptions& mesh = mesh_of(kDecoder);
    const int64_t ranks = request_.ranks, heads = query_heads(kDecoder);
    const int64_t most_tp = std::min<int64_t>({ranks, request_.ranks_per_node, heads});
    const int64_t most_cp = std::clamp<int64_t>(options_.data.row_tokens / kLeastTokens, 1, ranks);
    std::vector<GridChoice> all;
    for (const int64_t tp : degrees(kDecoder, "tp", mesh.tp, most_tp)) {
      if (heads % tp != 0 && !is_kept(kDecoder, "tp")) continue;
      for (const int64_t cp : degrees(kDecoder, "cp", mesh.cp, most_cp))
        for (const int64_t pp : stages())
          for (const CpMode mode : cp_modes(cp))
            for (const int64_t ep : expert_degrees())
              for (const int64_t etp : expert_tp(tp, ep))
                if (tp * cp * pp <= ranks)
                  all.push_back(
                      {.pp = pp, .cp = cp, .tp = tp, .ep = ep, .etp = etp, .cp_mode = mode});
    }
    return all;
  }

  std::vector<PipelineSchedule> schedules(ModulePlacement placement,
                                          const GridChoice& decoder) const {
    if (is_kept("mesh.schedule")) return {options_.mesh.schedule};
    if (placement == ModulePlacement::Shared && decoder.pp == 1)
      return {PipelineSchedule::OneFOneB};
    std::vector<PipelineSchedule> all{PipelineSchedule::OneFOneB, PipelineSchedule::ZeroBubble};
    if (decoder.pp > 1 && mesh_of(kDecoder).stages.empty())
      all.push_back(PipelineSchedule::Interleaved);
    return all;
  }

  std::vector<int64_t> virtual_stages(PipelineSchedule schedule, const GridChoice& decoder) const {
    if (is_kept(kDecoder, "virtual_stages")) return {mesh_of(kDecoder).virtual_stages};
    if (schedule != PipelineSchedule::Interleaved) return {1};
    std::vector<int64_t> all;
    for (const int64_t stages : {2, 4})
      if (decoder.pp * stages <= blocks(kDecoder)) all.push_back(stages);
    return all;
  }

  void add(ModulePlacement placement, PipelineSchedule schedule, GridChoice decoder,
           int64_t virtual_stages) {
    decoder.virtual_stages = virtual_stages;
    const LayoutGrids grids{.placement = placement, .schedule = schedule, .decoder = decoder};
    const int64_t ranks = decoder.pp * decoder.cp * decoder.tp;
    if (placement == ModulePlacement::Shared) {
      if (request_.ranks % ranks == 0) add_encoders(grids, 0, ranks);
      return;
    }
    // A replica holds all of the decoder's ranks, and at most twice as many for encoders.
    for (const int64_t replica : divisors(request_.ranks))
      if (replica > ranks && replica <= 3 * ranks) add_own(grids, replica - ranks, replica);
  }

  /// Encoders that share ranks with the decoder distribute their items, or are sharded as it is.
  void add_encoders(const LayoutGrids& grids, size_t encoder, int64_t replica) {
    if (encoder == model_.encoders.size()) return finish(grids, replica);
    const std::string& module = model_.encoders[encoder].name;
    const ModuleMeshOptions& own = mesh_of(module);
    std::vector<int64_t> cuts{1};
    if (grids.decoder.tp > 1 && query_heads(module) % grids.decoder.tp == 0)
      cuts.push_back(grids.decoder.tp);
    if (is_kept(module, "tp")) cuts = {own.tp};
    for (const int64_t tp : cuts) {
      LayoutGrids with = grids;
      with.encoders.push_back({.pp = pipeline_ranks(own),
                               .encoder_dp = own.encoder_dp,
                               .cp = own.cp,
                               .tp = tp,
                               .cp_mode = own.cp_mode});
      add_encoders(with, encoder + 1, replica);
    }
  }

  /// Encoders on so many ranks of their own.
  void add_own(const LayoutGrids& grids, int64_t ranks, int64_t replica) {
    const size_t encoders = model_.encoders.size();
    if (grids.placement == ModulePlacement::Colocated)
      return add_shares(grids, std::vector<int64_t>(encoders, ranks), replica);
    if (encoders == 1) return add_shares(grids, {ranks}, replica);
    if (encoders != 2) return add_even_shares(grids, ranks, replica);
    const int64_t step = std::max<int64_t>(1, ranks / kMostSplits);
    for (int64_t first = step; first < ranks; first += step)
      add_shares(grids, {first, ranks - first}, replica);
  }

  void add_even_shares(const LayoutGrids& grids, int64_t ranks, int64_t replica) {
    const auto encoders = static_cast<int64_t>(model_.encoders.size());
    if (ranks % encoders == 0)
      add_shares(grids, std::vector<int64_t>(model_.encoders.size(), ranks / encoders), replica);
  }

  void add_shares(LayoutGrids grids, const std::vector<int64_t>& shares, int64_t replica) {
    for (size_t encoder = 0; encoder < shares.size(); ++encoder) {
      const std::string& module = model_.encoders[encoder].name;
      const ModuleMeshOptions& own = mesh_of(module);
      GridChoice grid{.pp = pipeline_ranks(own),
                      .encoder_dp = own.encoder_dp,
                      .cp = own.cp,
                      .tp = own.tp,
                      .cp_mode = own.cp_mode};
      const int64_t cut = grid.pp * grid.cp * grid.tp;
      if (shares[encoder] % cut != 0) return;
      if (!is_kept(module, "encoder_dp")) grid.encoder_dp = shares[encoder] / cut;
      if (std::max<int64_t>(1, grid.encoder_dp) * cut != shares[encoder] &&
          grids.placement == ModulePlacement::Disjoint)
        return;
      grids.encoders.push_back(grid);
    }
    finish(grids, replica);
  }

  void finish(LayoutGrids grids, int64_t replica) {
    grids.replicas = request_.ranks / replica;
    if (shares_experts(grids.decoder, grids.replicas)) grids_.push_back(std::move(grids));
  }

  const SearchRequest& request_;
  const Options& options_;
  const ModelSpec& model_;
  std::vector<LayoutGrids> grids_;
};

bool is_pipelined(const LayoutGrids& grids) {
  return grids.placement != ModulePlacement::Shared || grids.decoder.pp > 1;
}

/// Returns whether a plan depends on single experts: through Muon, 8-bit states, rules or LoRA by
/// name, unflattened parameters, a profile, or the alignment of buffers.
bool needs_single_experts(const SearchRequest& request, const ModelSpec& model) {
  const Options& options = request.options;
  const OptimOptions& optim = options.optim;
  return optim.kind == OptimizerKind::Muon || optim.kind == OptimizerKind::Adamw8Bit ||
         !optim.lr_factors.empty() || !optim.weight_decays.empty() || !optim.frozen.empty() ||
         !options.llm.lora.targets.empty() || !options.meshes[kDecoder].flatten_parameters ||
         !request.profile.empty() || model.decoder.block.hidden % kFlatAlignment != 0;
}

}  // namespace

ModelSpec searched_model(const SearchRequest& request) {
  ModelSpec model = model_of(request.options, request.config_json);
  if (!model.has_experts() || needs_single_experts(request, model)) return model;
  nlohmann::json config = nlohmann::json::parse(request.config_json);
  config[kWeightsFiles][kExperts] = "out_in";
  ModelSpec stacked = model_of(request.options, config.dump());
  return stacked.params.size() < model.params.size() ? stacked : model;
}

std::vector<LayoutGrids> list_grids(const SearchRequest& request, const ModelSpec& model) {
  return LayoutSpace(request, model).grids();
}

std::vector<ShardingChoice> list_shardings(const SearchRequest& request, const ModelSpec& model,
                                           const LayoutGrids& grids) {
  using enum ShardingStrategy;
  const Options& options = request.options;
  const auto kept = [&](const std::string& path) { return options.given.contains(path); };
  const auto fits = [&](int64_t replicate) {
    const MeshOptions& mesh = options.mesh;
    return (!kept("mesh.dp_replicate") || mesh.dp_replicate < 1 ||
            mesh.dp_replicate == replicate) &&
           (!kept("mesh.dp_shard") || mesh.dp_shard < 1 ||
            mesh.dp_shard * replicate == grids.replicas);
  };
  std::vector<int64_t> degrees = divisors(grids.replicas);
  std::erase_if(degrees, [&](int64_t replicate) {
    return !fits(replicate) || !shares_experts(grids.decoder, grids.replicas / replicate);
  });
  const bool is_kept = kept("mesh." + kDecoder + ".strategy");
  const bool are_encoders_kept = std::ranges::all_of(
      model.encoders,
      [&](const EncoderSpec& encoder) { return kept("mesh." + encoder.name + ".strategy"); });
  // The ranks that could share a copy beside replicas.
  const bool shares_tokens = grids.decoder.cp > 1 || grids.placement != ModulePlacement::Shared;
  std::vector<ShardingChoice> all;
  const auto add = [&](ShardingStrategy strategy, int64_t replicate) {
    for (const bool each_use : {false, true}) {
      if (each_use && (!is_pipelined(grids) || strategy == NoShard ||
                       kept("mesh." + kDecoder + ".reshard_after_forward")))
        continue;
      all.push_back({replicate, strategy, strategy, each_use});
      if (strategy != NoShard && !are_encoders_kept)
        all.push_back({replicate, strategy, NoShard, each_use});
    }
  };
  const auto try_all = [&](ShardingStrategy strategy) {
    const bool is_hybrid = strategy == HybridShard || strategy == HybridShardZero2;
    for (const int64_t replicate : degrees) {
      if (strategy == NoShard) return add(strategy, replicate);  // all degrees are the same to it
      if (!is_hybrid && replicate > 1) continue;
      const bool shards = grids.replicas / replicate > 1 || shares_tokens;
      if (is_kept || (shards && is_hybrid == (replicate > 1))) add(strategy, replicate);
    }
  };
  if (is_kept) {
    try_all(options.meshes[kDecoder].strategy);
    return all;
  }
  try_all(NoShard);
  try_all(FullShard);
  try_all(HybridShard);
  if (is_pipelined(grids)) return all;  // gathered once a step, both ways of resharding are one
  try_all(ShardGradOp);
  try_all(HybridShardZero2);
  return all;
}

std::vector<AutoOption> list_recomputations(const SearchRequest& request) {
  const Options& options = request.options;
  if (options.given.contains("model.activation_checkpointing") ||
      options.run.mode != RunMode::Train)
    return {options.model.activation_checkpointing};
  return {AutoOption::of_count(0), AutoOption::selective(), AutoOption::of_count(4),
          AutoOption::of_count(2), AutoOption::of_count(1)};
}

Options with_layout(const SearchRequest& request, const ModelSpec& model, const LayoutGrids& grids,
                    const ShardingChoice& sharding, const AutoOption& recomputation) {
  Options options = request.options;
  const auto set = [&](const std::string& path, auto& member, const auto& value) {
    if (!options.given.contains(path)) member = value;
  };
  set("model.activation_checkpointing", options.model.activation_checkpointing, recomputation);
  if (recomputation.is_auto())
    set("mesh.rank_memory_mib", options.mesh.rank_memory_mib,
        static_cast<double>(memory_limit(request)) / (1 << 20));
  set("mesh.placement", options.mesh.placement, grids.placement);
  set("mesh.schedule", options.mesh.schedule, grids.schedule);
  set("mesh.dp_replicate", options.mesh.dp_replicate, sharding.dp_replicate);
  set("mesh.dp_shard", options.mesh.dp_shard, grids.replicas / sharding.dp_replicate);
  const auto set_module = [&](const std::string& module, const GridChoice& grid,
                              ShardingStrategy strategy) {
    ModuleMeshOptions& own = options.meshes[module];
    const std::string prefix = "mesh." + module + ".";
    set(prefix + "strategy", own.strategy, strategy);
    if (sharding.gathers_each_use && own.strategy != ShardingStrategy::NoShard)
      set(prefix + "reshard_after_forward", own.reshard_after_forward, AutoOption::of(true));
    if (own.stages.empty()) set(prefix + "pp", own.pp, grid.pp);
    set(prefix + "tp", own.tp, grid.tp);
    set(prefix + "ep", own.ep, grid.ep);
    set(prefix + "etp", own.etp, grid.etp);
    set(prefix + "cp", own.cp, grid.cp);
    set(prefix + "cp_mode", own.cp_mode, grid.cp_mode);
    set(prefix + "encoder_dp", own.encoder_dp, grid.encoder_dp);
    set(prefix + "virtual_stages", own.virtual_stages, grid.virtual_stages);
  };
  for (size_t encoder = 0; encoder < grids.encoders.size(); ++encoder)
    set_module(model.encoders[encoder].name, grids.encoders[encoder], sharding.encoders);
  set_module(kDecoder, grids.decoder, sharding.decoder);
  return options;
}

}  // namespace zea::detail
