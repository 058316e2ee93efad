// SPDX-License-Identifier: Apache-2.0
// Branch and bound, best first: grids by a bound from their FLOPs, then by their time without what
// strategies and recomputation add, then layouts by their time. Memory is estimated for layouts
// that would be among the best alone.
#include "estimate/layout_search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/key_table.hpp"
#include "estimate/fitting_plan.hpp"
#include "estimate/kernel_floor.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/traffic.hpp"

namespace zea {
namespace {

constexpr size_t kMostRefused = 5;

/// Keys whose values differ from those of the deck, as overrides.
std::vector<std::string> overrides_of(const Options& from, const Options& to) {
  Options before = from, after = to;
  for (const std::string& section : list_sections(after)) add_module_section(before, section, {});
  std::map<std::string, std::string> known;
  for (const Key& key : list_keys(before)) known[key.path()] = toml_text(key.member);
  std::vector<std::string> changed;
  for (const Key& key : list_keys(after))
    if (const std::string text = toml_text(key.member); known[key.path()] != text)
      changed.push_back(key.path() + "=" +
                        (text.starts_with('"') ? text.substr(1, text.size() - 2) : text));
  return changed;
}

/// Parameters, gradients and optimizer states of the rank that owns most.
int64_t owned_bytes_of(const Plan& plan) {
  int64_t most = 0;
  for (const StageGroup& place : plan.pipeline.stage_groups) {
    int64_t bytes = 0;
    for (const int g : plan.held_buffers(place.first_rank)) {
      const FlatBuffer& buffer = plan.buffers[g];
      const Sharding& sharding = plan.shardings[g];
      if (sharding.offloads) continue;
      const Precision& precision = plan.precision_of(buffer.module);
      const FlatRange own =
          shard_range(buffer, plan.shard_of(place.first_rank, g), sharding.shards);
      bytes += (own.end - own.begin) *
               owned_bytes(precision, buffer.trainable, !buffer.units.empty()).total();
      if (buffer.trainable)
        bytes += state_bytes(plan.optimizer, buffer, plan.param_rules, own, precision.master);
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// Grids, and a way to shard parameters, by their numbers.
struct Place {
  size_t grids = 0, sharding = 0;

  auto operator<=>(const Place&) const = default;
};

enum class Stage { Listed, Bounded, Timed };

/// A part of the space: all layouts with the same grids, with the same sharding (Bounded), or one
/// layout, which recomputes the least that fits (Timed).
struct Node {
  double seconds;  ///< no layout of it takes less
  Place place;     ///< of equals the first is taken
  Stage stage;

  bool operator<(const Node& other) const {  // a queue gives the greatest
    return std::tie(seconds, place) > std::tie(other.seconds, other.place);
  }
};

class LayoutSearch {
 public:
  LayoutSearch(const SearchRequest& request, const MakeSamples& samples, size_t most)
      : request_(request),
        make_samples_(samples),
        most_(most),
        limit_(memory_limit(request)),
        model_(model_of(request.options, request.config_json)),
        grids_(detail::list_grids(request, model_)),
        recomputations_(detail::list_recomputations(request)),
        shardings_(grids_.size()),
        timers_(grids_.size()) {}

  SearchResult run() {
    for (size_t g = 0; g < grids_.size(); ++g)
      queue_.push({least_seconds_of(g), {g}, Stage::Listed});
    while (!queue_.empty() && result_.best.size() < most_) {
      const Node node = queue_.top();
      queue_.pop();
      if (node.stage == Stage::Listed)
        bound_grids(node.place.grids);
      else if (node.stage == Stage::Bounded)
        time_layout(node);
      else
        result_.best.push_back(std::move(timed_.extract(node.place).mapped()));
    }
    result_.grids = std::ssize(grids_);
    if (result_.planned == 0) throw PlanError(no_layout());
    for (FoundLayout& layout : result_.best) complete(layout);
    keep_fast_refusals();
    return std::move(result_);
  }

 private:
  /// Bounds a grid by its kernels, without a plan of its own: grids with the same tp, and with cp
  /// or without, have the same; 0 where none of them can be planned.
  double least_seconds_of(size_t grids) {
    const detail::LayoutGrids& layout = grids_[grids];
    std::vector<int64_t> key{layout.decoder.tp, layout.decoder.cp > 1};
    for (const detail::GridChoice& encoder : layout.encoders) key.push_back(encoder.tp);
    auto& known = kernels_[key];
    if (!known) {
      const std::optional<Plan> plan = first_plan(grids);
      if (!plan) return 0;
      known = detail::rank_seconds(*plan, *samples_, *rows_, request_.hardware);
    }
    return detail::least_seconds(layout, *known, model_, *rows_, request_);
  }

  /// The first sharding of the grids that can be planned.
  std::optional<Plan> first_plan(size_t grids) {
    if (shardings_[grids].empty())
      shardings_[grids] = detail::list_shardings(request_, model_, grids_[grids]);
    std::optional<Plan> plan;
    for (size_t s = 0; s < shardings_[grids].size() && !plan; ++s) plan = light_plan({grids, s}, 0);
    if (plan && !samples_) {
      samples_ = make_samples_(*plan);
      rows_.emplace(*samples_, model_);
    }
    return plan;
  }

  /// Bounds a grid by its first sharding that can be planned; the others have the same kernels.
  void bound_grids(size_t grids) {
    const std::optional<Plan> plan = first_plan(grids);
    if (!plan) return;
    ++result_.planned;
    timers_[grids] = std::make_unique<StepTimer>(*plan, *samples_, request_.hardware,
                                                 order_of(*plan).node_of_logical);
    for (size_t s = 0; s < shardings_[grids].size(); ++s)
      queue_.push({timers_[grids]->bound(), {grids, s}, Stage::Bounded});
  }

  /// Times a layout with the first choice of recomputation that fits.
  void time_layout(Node node) {
    const std::optional<Plan> light = light_plan(node.place, node.seconds);
    if (!light) return;
    if (const int64_t owned = owned_bytes_of(*light); owned > limit_)
      return refuse_memory(node.place, owned, " by what ranks own alone", node.seconds);
    std::optional<Plan> plan = full_plan(node.place, node.seconds);
    if (!plan) return;
    MemoryEstimate needed = memory_of(*plan);
    for (size_t r = 1; r < recomputations_.size() && needed.with_graphs() > limit_; ++r) {
      plan->options.model.activation_checkpointing = recomputations_[r];
      plan->recomputed = recomputed_units(plan->options.model, plan->model);
      needed = memory_of(*plan);
    }
    if (needed.with_graphs() > limit_)
      return refuse_memory(node.place, needed.with_graphs(),
                           (needed.peak_at.empty() ? "" : " at " + needed.peak_at) +
                               (recomputations_.size() > 1 ? ", with every unit recomputed" : ""),
                           node.seconds);
    ++result_.timed;
    StepTime time = timers_[node.place.grids]->time(*plan);
    node.stage = Stage::Timed;
    node.seconds = time.seconds;
    queue_.push(node);
    timed_[node.place] = {.options = plan->options,
                          .time = std::move(time),
                          .memory = needed.with_graphs(),
                          .memory_at = needed.peak_at};
  }

  /// Estimates the place that needs most, or the first that is beyond the limit.
  MemoryEstimate memory_of(const Plan& plan) const {
    const std::vector<MicrobatchSizes> full(static_cast<size_t>(predicted_microbatches(plan)),
                                            full_microbatch(plan));
    MemoryEstimate most;
    for (const StageGroup& place : plan.pipeline.stage_groups) {
      MemoryEstimate own = estimate_run(plan, place.first_rank, full);
      if (own.with_graphs() > most.with_graphs()) most = std::move(own);
      if (most.with_graphs() > limit_) break;
    }
    return most;
  }

  Options options_of(const Place& place) const {
    return detail::with_layout(request_, model_, grids_[place.grids],
                               shardings_[place.grids][place.sharding], recomputations_.front());
  }

  Plan made_plan(const Options& options) const {
    return options.model.activation_checkpointing.is_auto()
               ? make_fitting_plan(options, request_.config_json, request_.ranks, request_.profile)
               : make_plan(options, model_, request_.config_json, request_.ranks, request_.profile);
  }

  std::optional<Plan> light_plan(const Place& place, double seconds) {
    try {
      return make_plan_without_slots(options_of(place), model_, request_.config_json,
                                     request_.ranks, request_.profile);
    } catch (const PlanError& error) {
      refuse(place, error.what(), seconds);
      return {};
    }
  }

  std::optional<Plan> full_plan(const Place& place, double seconds) {
    try {
      return made_plan(options_of(place));
    } catch (const PlanError& error) {
      refuse(place, error.what(), seconds);
      return {};
    }
  }

  void refuse(const Place& place, const std::string& reason, double seconds) {
    if (first_refusal_.empty()) first_refusal_ = reason;
    if (seconds > 0) refused_.emplace_back(seconds, 0, place, reason);
  }
  void refuse_memory(const Place& place, int64_t bytes, const std::string& where, double seconds) {
    const int64_t excess = bytes - limit_;
    const double mib = static_cast<double>(excess) / (1 << 20);
    const std::string size =
        mib < 1024 ? formatted("%.2f MiB", mib) : formatted("%.2f GiB", mib / 1024);
    refused_.emplace_back(seconds, excess, place, "exceeds memory by " + size + where);
  }

  RankOrder order_of(const Plan& plan) const {
    return order_ranks(plan.mesh, even_nodes(plan.world_size(), request_.ranks_per_node),
                       plan.options.mesh.order);
  }

  /// Adds what only layouts that are shown need.
  void complete(FoundLayout& layout) const {
    layout.overrides = overrides_of(request_.options, layout.options);
    const Plan plan = made_plan(layout.options);
    const RankOrder order = order_of(plan);
    if (order.nodes() == 1) return;
    for (const auto& [group, bytes] : traffic_between_nodes(plan, order, *samples_))
      layout.between_nodes += static_cast<double>(bytes);
  }

  /// Keeps those that may be fastest; of equals those that need least memory.
  void keep_fast_refusals() {
    const double last = result_.best.empty() ? HUGE_VAL : result_.best.back().time.seconds;
    std::ranges::sort(refused_);
    for (const auto& [seconds, excess, place, reason] : refused_)
      if (seconds <= last && result_.refused.size() < kMostRefused)
        result_.refused.push_back(
            {overrides_of(request_.options, options_of(place)), reason, seconds});
  }

  std::string no_layout() const {
    return "no layout of " + std::to_string(request_.ranks) +
           " ranks can be planned with what the deck sets" +
           (first_refusal_.empty() ? "" : "; the first that was tried: " + first_refusal_);
  }

  const SearchRequest& request_;
  const MakeSamples& make_samples_;
  const size_t most_;
  const int64_t limit_;
  const ModelSpec model_;
  const std::vector<detail::LayoutGrids> grids_;
  const std::vector<AutoOption> recomputations_;
  std::vector<std::vector<detail::ShardingChoice>> shardings_;  ///< of each of grids_
  std::vector<std::unique_ptr<StepTimer>> timers_;              ///< of each of grids_
  std::optional<StepSamples> samples_;
  std::optional<detail::StepRows> rows_;  ///< of these
  std::map<std::vector<int64_t>, std::optional<detail::RankSeconds>> kernels_;
  std::priority_queue<Node> queue_;
  std::map<Place, FoundLayout> timed_;
  /// Seconds at least, bytes beyond the limit, the layout, and the reason.
  std::vector<std::tuple<double, int64_t, Place, std::string>> refused_;
  std::string first_refusal_;
  SearchResult result_;
};

}  // namespace

int64_t memory_limit(const SearchRequest& request) {
  const double mib = request.options.mesh.rank_memory_mib;
  const auto of_deck = static_cast<int64_t>(mib * (1 << 20));
  return of_deck > 0 ? std::min(of_deck, request.memory_bytes) : request.memory_bytes;
}

SearchResult search_layouts(const SearchRequest& request, const MakeSamples& samples, size_t most) {
  return LayoutSearch(request, samples, most).run();
}

}  // namespace zea
