// SPDX-License-Identifier: Apache-2.0
#include "estimate/kernel_floor.hpp"

#include <algorithm>

#include "estimate/unit_time.hpp"
#include "layout/visibility.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kLongRow = int64_t{1} << 20;  ///< so that launches and latencies do not count
constexpr double kRounding = 1 - 1e-6;

/// Pairs of a query and a key of a step, for each token.
double pairs_per_token(const StepSamples& samples, const StepRows& rows, int64_t window) {
  double pairs = 0;
  for (const std::vector<int64_t>& batch : samples.batches)
    for (const int64_t id : batch)
      pairs += visible_pairs(samples.index[static_cast<size_t>(id)].tokens, window);
  return rows.tokens > 0 ? pairs / (rows.tokens * static_cast<double>(samples.steps())) : 0;
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
        gradients_(plan.model.units_with_gradient()) {}

  double of(int unit, const ModuleRows& rows, int64_t count) {
    const bool trains = plan_.options.run.mode == RunMode::Train;
    if (trains && plan_.model.is_cached(unit)) return 0;
    const ModuleGrid& grid = plan_.mesh.grid(plan_.model.units[static_cast<size_t>(unit)].module);
    const UnitSeconds& kernels = units_.of(unit, rows);
    double seconds = kernels.forward + calls(unit, rows, grid, false);
    if (trains && gradients_[static_cast<size_t>(unit)])
      seconds += kernels.backward() + calls(unit, rows, grid, true);
    return seconds * grid.tp / static_cast<double>(count);
  }

 private:
  double calls(int unit, const ModuleRows& rows, const ModuleGrid& grid, bool backward) {
    if (grid.tp == 1) return 0;
    double seconds = 0;
    for (const SentCall& call : calls_of_unit(plan_, unit, rows, grid.first_rank, backward))
      seconds += calls_.seconds(grid.first_rank, call);
    return seconds;
  }

  const Plan& plan_;
  const std::vector<int> node_of_;  ///< all on one, whose links are the fastest
  UnitTimes units_;
  CallTimes calls_;
  const std::vector<bool> gradients_;
};

/// Keys and values that cp ranks gather, of all ranks together.
double gather_seconds(const LayoutGrids& grids, const ModelSpec& model, const StepRows& rows,
                      double bytes, const SearchRequest& request) {
  const GridChoice& grid = grids.decoder;
  if (grid.cp == 1 || grid.cp_mode != CpMode::AllGatherKv) return 0;
  const HeadShape heads = model.heads(kDecoder);
  const auto width =
      static_cast<double>(2 * std::max<int64_t>(1, heads.key_value / grid.tp) * heads.dim);
  const bool crosses = grid.cp > request.ranks_per_node;
  const auto rate = [&](CollectiveKind kind) {
    const double inside = request.hardware.inside.rate(kind);
    return crosses ? std::min(inside, request.hardware.between.rate(kind) * request.ranks_per_node)
                   : inside;
  };
  const double once = rows.tokens * static_cast<double>((grid.cp - 1) * grid.tp) * width * bytes;
  const bool trains = request.options.run.mode == RunMode::Train;
  const std::vector<bool> gradients = model.units_with_gradient();
  double seconds = 0;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (unit.module != kDecoder || unit.kind != UnitKind::Block || model.delta_rule(unit)) continue;
    const double gathers = trains && gradients[u] ? 2 : 1;
    seconds += gathers * once / rate(CollectiveKind::AllGather);
    if (trains && gradients[u]) seconds += once / rate(CollectiveKind::ReduceScatter);
  }
  return seconds;
}

}  // namespace

StepRows::StepRows(const StepSamples& samples, const ModelSpec& model)
    : items(model.encoders.size(), 0) {
  for (const std::vector<int64_t>& batch : samples.batches)
    for (const int64_t id : batch) {
      const SampleIndex& sample = samples.index[static_cast<size_t>(id)];
      tokens += static_cast<double>(sample.tokens);
      targets += static_cast<double>(sample.targets);
      for (const ItemList::Run& run : sample.items.runs()) {
        if (static_cast<size_t>(run.encoder) >= items.size()) continue;
        const EncoderSpec& encoder = model.encoders[static_cast<size_t>(run.encoder)];
        const int64_t of_item =
            run.shape.tokens > 0 ? run.shape.tokens : encoder.item_shape().tokens;
        items[static_cast<size_t>(run.encoder)] += static_cast<double>(run.items * of_item);
      }
    }
  const auto steps = static_cast<double>(samples.steps());
  tokens /= steps;
  targets /= steps;
  for (double& count : items) count /= steps;
}

RankSeconds rank_seconds(const Plan& plan, const StepSamples& samples, const StepRows& rows,
                         const Hardware& hardware) {
  const ModelSpec& model = plan.model;
  RankSeconds sum{.encoders = std::vector<double>(model.encoders.size(), 0),
                  .element_bytes = static_cast<double>(element_bytes(plan.precision.param))};
  RowSeconds seconds(plan, hardware);
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const int64_t count = kLongRow * plan.mesh.grid(unit.module).tp;
    const int number = static_cast<int>(u);
    if (unit.module != kDecoder) {
      const auto encoder = static_cast<size_t>(model.encoder_index(unit.module));
      // The rows of a projector follow from those of the usual item.
      const ItemShape usual = model.encoders[encoder].item_shape();
      const int64_t read = usual.tokens > 0 ? count / usual.tokens * usual.projected() : count;
      sum.encoders[encoder] += rows.items[encoder] *
                               seconds.of(number, long_rows(plan, unit.module, count, read), count);
      continue;
    }
    ModuleRows here = long_rows(plan, unit.module, count, count);
    if (unit.kind == UnitKind::Block) {
      const int64_t window = model.window(unit);
      here.pairs[window] = static_cast<double>(count) * pairs_per_token(samples, rows, window);
    }
    sum.decoder += (unit.kind == UnitKind::Head ? rows.targets : rows.tokens) *
                   seconds.of(number, here, count);
  }
  return sum;
}

double least_seconds(const LayoutGrids& grids, const RankSeconds& seconds, const ModelSpec& model,
                     const StepRows& rows, const SearchRequest& request) {
  const double decoder =
      seconds.decoder + gather_seconds(grids, model, rows, seconds.element_bytes, request);
  double encoders = 0;
  for (const double of_encoder : seconds.encoders) encoders += of_encoder;
  double least = (decoder + encoders) / request.ranks;
  if (grids.placement != ModulePlacement::Shared) {
    const GridChoice& grid = grids.decoder;
    const auto ranks = static_cast<double>(grids.replicas * grid.pp * grid.cp * grid.tp);
    least = std::max({least, decoder / ranks, encoders / (request.ranks - ranks)});
  }
  return kRounding * least;
}

}  // namespace zea::detail
