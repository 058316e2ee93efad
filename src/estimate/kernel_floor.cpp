// SPDX-License-Identifier: Apache-2.0
#include "estimate/kernel_floor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "estimate/unit_time.hpp"
#include "layout/visibility.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kLongRow = int64_t{1} << 20;  ///< so that launches and latencies do not count
constexpr double kRounding = 1 - 1e-6;
/// The replica with the most FLOPs need not be the one with the longest kernels.
constexpr double kUneven = 0.9;

/// Whether GEMMs of more rows never take less time, from `least` rows on.
bool takes_longer_for_more(const DeviceRates& rates, double least) {
  for (size_t i = 0; i + 1 < rates.gemm_dims.size(); ++i) {
    if (rates.gemm_dims[i + 1] <= least) continue;
    const double growth = (rates.gemm_efficiency[i + 1] - rates.gemm_efficiency[i]) /
                          std::log2(rates.gemm_dims[i + 1] / rates.gemm_dims[i]);
    if (rates.gemm_share(std::max(rates.gemm_dims[i], least)) < growth / std::log(2.0))
      return false;
  }
  return true;
}

/// The decoder's rows of a full microbatch on the tp ranks of a cp rank, at least: with less, ranks
/// take no less time for a row.
int64_t most_rows(const Plan& plan, int64_t cp, const Hardware& hardware) {
  const int64_t full = plan.options.data.row_tokens * plan.options.data.rows_per_microbatch;
  const int64_t tp = plan.mesh.grid(kDecoder).tp;
  const auto of_rank = [&](int64_t ranks) { return (full + ranks - 1) / ranks; };
  int64_t parts = 1;  // of a rank's rows that are multiplied with different experts
  for (const MlpSpec& mlp : plan.model.decoder.block.mlps)
    if (mlp.router) parts = std::max(parts, mlp.router->experts);
  const auto least = static_cast<double>(of_rank(cp)) / static_cast<double>(parts);
  return tp * of_rank(takes_longer_for_more(hardware.device, least) ? cp * tp : tp);
}

/// Pairs of a query and a key of a step, for each token.
double pairs_per_token(const StepSamples& samples, const StepRows& rows, int64_t window) {
  double pairs = 0;
  for (const std::vector<int64_t>& batch : samples.batches)
    for (const int64_t id : batch)
      pairs += visible_pairs(samples.index[static_cast<size_t>(id)].tokens, window);
  return rows.tokens > 0 ? pairs / (rows.tokens * static_cast<double>(samples.steps())) : 0;
}

/// The share of a step's tokens, targets and pairs that each of its samples has at least.
double least_share_of(const StepSamples& samples, const ModelSpec& model,
                      const std::vector<int64_t>& batch) {
  const auto share = [&](const auto& count) {
    double sum = 0, least = std::numeric_limits<double>::infinity();
    for (const int64_t id : batch) {
      const auto own = static_cast<double>(count(samples.index[static_cast<size_t>(id)]));
      sum += own;
      least = std::min(least, own);
    }
    return sum > 0 ? least / sum : 1;
  };
  double shared = std::min(share([](const SampleIndex& sample) { return sample.tokens; }),
                           share([](const SampleIndex& sample) { return sample.targets; }));
  for (const AttentionSpec& attention : model.decoder.block.attentions())
    shared = std::min(shared, share([&](const SampleIndex& sample) {
                        return visible_pairs(sample.tokens, attention.window);
                      }));
  return shared;
}

/// `rows` of a module on tp ranks, `read` of which its last unit reads.
ModuleRows long_rows(const Plan& plan, const std::string& module, int64_t rows, int64_t read) {
  const int64_t tp = plan.mesh.grid(module).tp;
  const bool deals = tp > 1 && plan.token_shardings.at(module).sequence_parallel;
  const auto dealt = [&](int64_t all) {
    return deals ? TpRows{std::vector<int64_t>(static_cast<size_t>(tp), all / tp), true}
                 : TpRows{{all}, false};
  };
  ModuleRows made;
  made.held = dealt(rows);
  made.read = dealt(read);
  const ModuleGrid& grid = plan.mesh.grid(module);
  const auto of_each = [](int ranks, int64_t count) {
    return ranks > 1 ? std::vector<int64_t>(static_cast<size_t>(ranks), count)
                     : std::vector<int64_t>();
  };
  made.experts = {.cp = of_each(grid.ep_cp, rows),
                  .replicas = of_each(grid.ep_dp_shard, rows * grid.ep_cp)};
  return made;
}

/// Seconds of a unit for each row, of all tp ranks together.
class RowSeconds {
 public:
  RowSeconds(const Plan& plan, const Hardware& hardware)
      : plan_(plan),
        node_of_(static_cast<size_t>(plan.world_size()), 0),
        units_(plan, hardware.device),
        calls_(plan, node_of_, hardware),
        overlaps_(hardware.device.overlaps),
        gradients_(plan.model.units_with_gradient()) {}

  int class_of(int unit) const { return units_.class_of(unit); }

  UnitCost of(int unit, const ModuleRows& rows, int64_t count) {
    const bool trains = plan_.options.run.mode == RunMode::Train;
    if (trains && plan_.model.is_cached(unit)) return {};
    const ModuleGrid& grid = plan_.mesh.grid(plan_.model.units[static_cast<size_t>(unit)].module);
    const UnitSeconds& kernels = units_.of(unit, rows);
    const double ranks = grid.tp / static_cast<double>(count);
    UnitCost cost{.forward = ranks * (kernels.forward + calls(unit, rows, grid, kernels, false))};
    if (trains && gradients_[static_cast<size_t>(unit)]) {
      cost.backward_input =
          ranks * (kernels.backward_input + calls(unit, rows, grid, kernels, true));
      cost.backward_weight = ranks * kernels.backward_weight;
    }
    return cost;
  }

 private:
  double calls(int unit, const ModuleRows& rows, const ModuleGrid& grid, const UnitSeconds& kernels,
               bool backward) {
    if (grid.tp == 1) return 0;
    double seconds = 0;
    for (const SentCall& call : calls_of_unit(plan_, unit, rows, grid.first_rank, backward)) {
      SentCall at_once = call;  // a lower bound: fewer rows have fewer chunks, each with a latency
      at_once.chunks = 1;
      seconds +=
          exposed_seconds(call, calls_.seconds(grid.first_rank, at_once), kernels, overlaps_);
    }
    return seconds;
  }

  const Plan& plan_;
  const std::vector<int> node_of_;  ///< all on one, whose links are the fastest
  UnitTimes units_;
  CallTimes calls_;
  const bool overlaps_;
  const std::vector<bool> gradients_;
};

/// Keys and values that cp ranks gather in a block, of all ranks together.
UnitCost gather_cost(const LayoutGrids& grids, const ModelSpec& model, const StepRows& rows,
                     double bytes, const SearchRequest& request) {
  const GridChoice& grid = grids.decoder;
  if (grid.cp == 1 || grid.cp_mode != CpMode::AllGatherKv) return {};
  const auto width_of = [&](const AttentionSpec& kind) {
    return 2 * std::max<int64_t>(1, kind.heads.key_value / grid.tp) * kind.heads.dim;
  };
  const auto width = static_cast<double>(
      width_of(std::ranges::min(model.decoder.block.attentions(), {}, width_of)));
  const bool crosses = grid.cp > request.ranks_per_node;
  const auto rate = [&](CollectiveKind kind) {
    const double inside = request.hardware.inside.rate(kind);
    return crosses ? std::min(inside, request.hardware.between.rate(kind) * request.ranks_per_node)
                   : inside;
  };
  const double once = rows.tokens * static_cast<double>((grid.cp - 1) * grid.tp) * width * bytes;
  const double gathers = once / rate(CollectiveKind::AllGather);
  return {.forward = gathers,
          .backward_input = gathers + once / rate(CollectiveKind::ReduceScatter)};
}

UnitCost& operator+=(UnitCost& sum, const UnitCost& more) {
  sum.forward += more.forward;
  sum.backward_input += more.backward_input;
  sum.backward_weight += more.backward_weight;
  return sum;
}

/// A bound from the busiest stage group: what it does, and how the first microbatch comes to it and
/// the last one's gradients leave it.
double pipeline_seconds(const LayoutGrids& grids, const std::vector<UnitCost>& units,
                        const StageUnits& stages, double encoders, const StepRows& rows) {
  const auto groups = static_cast<size_t>(grids.decoder.pp);
  const auto ranks = static_cast<double>(grids.decoder.cp * grids.decoder.tp);
  const bool splits = grids.schedule == PipelineSchedule::ZeroBubble;
  std::vector<UnitCost> of_group(groups);
  for (size_t s = 0; s < stages.size(); ++s)
    for (const int unit : stages[s]) of_group[s % groups] += units[static_cast<size_t>(unit)];
  if (grids.placement == ModulePlacement::Shared) of_group[0].forward += encoders;
  double least = 0, way = 0, way_back = 0;  // of the stages before that of a stage group
  for (size_t g = 0; g < groups; ++g) {
    const UnitCost& cost = of_group[g];
    const double on_rank = 1 / (ranks * static_cast<double>(grids.replicas));
    if (splits)
      least = std::max(least, (cost.forward + cost.backward_input) * on_rank + way + way_back);
    least = std::max(least, cost.total() * on_rank + way + (splits ? 0 : way_back));
    for (const int unit : stages[g]) {
      const UnitCost& own = units[static_cast<size_t>(unit)];
      way += rows.least_share * own.forward / ranks;
      way_back += rows.least_share * (splits ? own.backward_input : own.backward()) / ranks;
    }
  }
  return least;
}

}  // namespace

StepRows::StepRows(const StepSamples& samples, const ModelSpec& model)
    : items(model.encoders.size(), 0) {
  for (const std::vector<int64_t>& batch : samples.batches)
    for (const int64_t id : batch) {
      const SampleIndex& sample = samples.index[static_cast<size_t>(id)];
      tokens += static_cast<double>(sample.tokens);
      targets += static_cast<double>(sample.targets);
      is_even = is_even && sample == samples.index[static_cast<size_t>(batch.front())];
      for (const ItemList::Run& run : sample.items.runs()) {
        if (static_cast<size_t>(run.encoder) >= items.size()) continue;
        const EncoderSpec& encoder = model.encoders[static_cast<size_t>(run.encoder)];
        const int64_t of_item =
            run.shape.tokens > 0 ? run.shape.tokens : encoder.item_shape().tokens;
        items[static_cast<size_t>(run.encoder)] += static_cast<double>(run.items * of_item);
      }
    }
  for (const std::vector<int64_t>& batch : samples.batches)
    least_share = std::min(least_share, least_share_of(samples, model, batch));
  const auto steps = static_cast<double>(samples.steps());
  tokens /= steps;
  targets /= steps;
  for (double& count : items) count /= steps;
}

RankSeconds rank_seconds(const Plan& plan, int64_t cp, const StepSamples& samples,
                         const StepRows& rows, const Hardware& hardware) {
  const ModelSpec& model = plan.model;
  RankSeconds sum{.units = {},
                  .element_bytes = static_cast<double>(element_bytes(plan.precision.param))};
  RowSeconds seconds(plan, hardware);
  std::map<int, UnitCost> of_class;  // for each row
  const int64_t decoder_rows = most_rows(plan, cp, hardware);
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const int number = static_cast<int>(u);
    const bool is_decoder = unit.module == kDecoder;
    const int64_t count = is_decoder ? decoder_rows : kLongRow * plan.mesh.grid(unit.module).tp;
    double all = unit.kind == UnitKind::Head ? rows.targets : rows.tokens;
    int64_t read = count;
    if (!is_decoder) {
      const auto encoder = static_cast<size_t>(model.encoder_index(unit.module));
      // The rows of a projector follow from those of the usual item.
      const ItemShape usual = model.encoders[encoder].item_shape();
      if (usual.tokens > 0) read = count / usual.tokens * usual.projected();
      all = rows.items[encoder];
    }
    ModuleRows here = long_rows(plan, unit.module, count, read);
    if (is_decoder && unit.kind == UnitKind::Block) {
      const int64_t window = model.window(unit);
      here.pairs[window] = static_cast<double>(count) * pairs_per_token(samples, rows, window);
    }
    const auto [known, is_new] = of_class.try_emplace(seconds.class_of(number));
    if (is_new) known->second = seconds.of(number, here, count);
    UnitCost cost = known->second;
    for (double* part : {&cost.forward, &cost.backward_input, &cost.backward_weight}) *part *= all;
    sum.units.push_back(cost);
  }
  return sum;
}

StageUnits decoder_stages(const Plan& plan) {
  StageUnits stages;
  for (const PipelineStage& stage : plan.pipeline.stages) {
    std::vector<int> units;
    for (const int unit : stage.units)
      if (plan.model.units[static_cast<size_t>(unit)].module == kDecoder) units.push_back(unit);
    if (!units.empty()) stages.push_back(std::move(units));
  }
  return stages;
}

double least_seconds(const LayoutGrids& grids, const RankSeconds& seconds, const StageUnits* stages,
                     const ModelSpec& model, const StepRows& rows, const SearchRequest& request,
                     const std::vector<Recompute>& recomputed) {
  const bool trains = request.options.run.mode == RunMode::Train;
  std::vector<UnitCost> units = seconds.units;
  const UnitCost gather = gather_cost(grids, model, rows, seconds.element_bytes, request);
  double decoder = 0, encoders = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.module == kDecoder && unit.kind == UnitKind::Block && !model.delta_rule(unit)) {
      units[u].forward += gather.forward;
      if (trains && units[u].backward() > 0) units[u].backward_input += gather.backward_input;
    }
    if (trains && !recomputed.empty() && recomputed[u] == Recompute::Full &&
        units[u].backward() > 0)
      units[u].backward_input += units[u].forward;
    (unit.module == kDecoder ? decoder : encoders) += units[u].total();
  }
  double least = (decoder + encoders) / request.ranks;
  if (grids.placement != ModulePlacement::Shared) {
    const GridChoice& grid = grids.decoder;
    const auto ranks = static_cast<double>(grids.replicas * grid.pp * grid.cp * grid.tp);
    least = std::max({least, decoder / ranks, encoders / (request.ranks - ranks)});
  }
  if (stages != nullptr && grids.decoder.pp > 1)
    least = std::max(least, pipeline_seconds(grids, units, *stages, encoders, rows));
  return (rows.is_even ? kRounding : kUneven) * least;
}

}  // namespace zea::detail
