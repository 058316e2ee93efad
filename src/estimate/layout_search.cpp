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

/// "exceeds memory by 3.10 GiB at backward llm.layers.7".
std::string excess_of(const MemoryEstimate& memory, int64_t limit) {
  const auto excess = static_cast<double>(memory.with_graphs() - limit);
  return formatted("exceeds memory by %.2f GiB", excess / (1 << 30)) +
         (memory.peak_at.empty() ? "" : " at " + memory.peak_at);
}

/// One layout of the space.
struct Place {
  size_t grids = 0, sharding = 0, recomputation = 0;

  auto operator<=>(const Place&) const = default;
};

enum class Stage { Listed, Planned, Timed };

/// A part of the space: all layouts of a grid (Listed), all recomputations of a layout from one on
/// (Planned), or one layout (Timed).
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
    for (size_t g = 0; g < grids_.size(); ++g) queue_.push({0, {g}, Stage::Listed});
    while (!queue_.empty() && result_.best.size() < most_) {
      const Node node = queue_.top();
      queue_.pop();
      if (node.stage == Stage::Listed)
        plan_grids(node.place.grids);
      else if (node.stage == Stage::Planned)
        time_layout(node);
      else
        check_memory(node);
    }
    result_.grids = std::ssize(grids_);
    if (result_.planned == 0) throw PlanError(no_layout());
    for (FoundLayout& layout : result_.best) complete(layout);
    keep_fast_refusals();
    return std::move(result_);
  }

 private:
  /// Bounds a grid by its first sharding that can be planned; the others have the same kernels.
  void plan_grids(size_t grids) {
    shardings_[grids] = detail::list_shardings(request_, model_, grids_[grids]);
    std::optional<Plan> plan;
    for (size_t s = 0; s < shardings_[grids].size() && !plan; ++s)
      plan = planned_or_refused({grids, s, 0}, 0);
    if (!plan) return;
    ++result_.planned;
    if (!samples_) samples_ = make_samples_(*plan);
    try {
      timers_[grids] = std::make_unique<StepTimer>(*plan, *samples_, request_.hardware,
                                                   order_of(*plan).node_of_logical);
    } catch (const DataError& error) {  // a sample is longer than a row
      return refuse({grids, 0, 0}, error.what(), 0);
    }
    const double bound = timers_[grids]->time(*plan, true).seconds;
    for (size_t s = 0; s < shardings_[grids].size(); ++s)
      queue_.push({bound, {grids, s, 0}, Stage::Planned});
  }

  void time_layout(Node node) {
    const std::optional<Plan> plan = planned_or_refused(node.place, node.seconds);
    if (!plan) return;
    ++result_.timed;
    StepTime time = timers_[node.place.grids]->time(*plan);
    node.stage = Stage::Timed;
    node.seconds = time.seconds;
    times_[node.place] = std::move(time);
    queue_.push(node);
  }

  void check_memory(const Node& node) {
    const Plan plan = made_plan(options_of(node.place));
    MemoryEstimate most;
    for (MemoryEstimate& place : estimate_places(plan, predicted_microbatches(plan)))
      if (place.with_graphs() > most.with_graphs()) most = std::move(place);
    StepTime time = std::move(times_.extract(node.place).mapped());
    if (most.with_graphs() > limit_) {
      refuse(node.place, excess_of(most, limit_), node.seconds);
      return recompute_more(node);
    }
    result_.best.push_back({.options = plan.options,
                            .time = std::move(time),
                            .memory = most.with_graphs(),
                            .memory_at = most.peak_at});
  }

  /// The units that the next choice recomputes include those of this one, so it takes longer.
  void recompute_more(Node node) {
    if (++node.place.recomputation == recomputations_.size()) return;
    node.stage = Stage::Planned;
    queue_.push(node);
  }

  Options options_of(const Place& place) const {
    return detail::with_layout(request_, model_, grids_[place.grids],
                               shardings_[place.grids][place.sharding],
                               recomputations_[place.recomputation]);
  }

  Plan made_plan(const Options& options) const {
    return options.model.activation_checkpointing.is_auto()
               ? make_fitting_plan(options, request_.config_json, request_.ranks, request_.profile)
               : make_plan(options, model_, request_.config_json, request_.ranks, request_.profile);
  }

  std::optional<Plan> planned_or_refused(const Place& place, double seconds) {
    try {
      return made_plan(options_of(place));
    } catch (const PlanError& error) {
      refuse(place, error.what(), seconds);
      return {};
    }
  }

  void refuse(const Place& place, const std::string& reason, double seconds) {
    if (first_refusal_.empty()) first_refusal_ = reason;
    if (seconds > 0) refused_.emplace_back(seconds, place, reason);
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

  /// Of refused layouts those that were timed, so that hardware alone refuses them.
  void keep_fast_refusals() {
    const double last = result_.best.empty() ? HUGE_VAL : result_.best.back().time.seconds;
    std::ranges::sort(refused_);
    for (const auto& [seconds, place, reason] : refused_)
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
  std::priority_queue<Node> queue_;
  std::map<Place, StepTime> times_;
  std::vector<std::tuple<double, Place, std::string>> refused_;
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
