// SPDX-License-Identifier: Apache-2.0
// Branch and bound, best first: grids by a bound from their FLOPs, then by their time without the
// cost of strategies and recomputation, then layouts by their time. Memory is estimated only for
// layouts that would be among the best.
#include "estimate/layout_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/key_table.hpp"
#include "estimate/fitting_plan.hpp"
#include "estimate/grid_floors.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/sharding_floor.hpp"
#include "estimate/traffic.hpp"

namespace zea {
namespace {

constexpr size_t kMostRefused = 5;
constexpr double kRounding = 1 - 1e-9;  ///< of sums of the same terms in another order

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

/// Returns the most that a stage group's first rank has of bytes_of(rank, buffer), summed over the
/// buffers that it holds.
template <class BytesOf>
int64_t most_bytes(const Plan& plan, const BytesOf& bytes_of) {
  int64_t most = 0;
  for (const StageGroup& group : plan.pipeline.stage_groups) {
    int64_t bytes = 0;
    for (const int g : plan.held_buffers(group.first_rank)) bytes += bytes_of(group.first_rank, g);
    most = std::max(most, bytes);
  }
  return most;
}

/// The bytes of optimizer states in a range of a buffer.
int64_t states_in(const Plan& plan, int g, const FlatRange& range) {
  const FlatBuffer& buffer = plan.buffers[g];
  if (!buffer.trainable) return 0;
  return state_bytes(plan.optimizer, buffer, plan.param_rules, range,
                     plan.precision_of(buffer.module).master);
}

/// Parameters, gradients and optimizer states of the rank that owns most.
int64_t owned_bytes_of(const Plan& plan) {
  return most_bytes(plan, [&](int rank, int g) -> int64_t {
    const FlatBuffer& buffer = plan.buffers[g];
    const Sharding& sharding = plan.shardings[g];
    if (sharding.offloads) return 0;
    const FlatRange own = shard_range(buffer, plan.shard_of(rank, g), sharding.shards);
    const OwnedBytes each =
        owned_bytes(plan.precision_of(buffer.module), buffer.trainable, buffer.is_computed_with());
    return (own.end - own.begin) * each.total() + states_in(plan, g, own);
  });
}

/// Masters and optimizer states that the rank with most of them writes into a checkpoint.
int64_t written_bytes_of(const Plan& plan) {
  return most_bytes(plan, [&](int rank, int g) {
    const FlatRange own = plan.own_range(rank, g);
    return (own.end - own.begin) * static_cast<int64_t>(element_bytes(plan.owned_type(g))) +
           states_in(plan, g, own);
  });
}

/// Grids, and a way to shard parameters, by their numbers.
struct LayoutKey {
  size_t grids = 0, sharding = 0;

  auto operator<=>(const LayoutKey&) const = default;
};

enum class Stage {
  Listed,   ///< all layouts of a grid, bounded by kernels
  Fitted,   ///< the same, bounded also by the recomputation that memory requires
  Bounded,  ///< one sharding of a grid
  Timed,    ///< one layout, which recomputes the least that fits
};

/// A part of the space.
struct Node {
  double seconds;  ///< no layout of it takes less
  LayoutKey key;   ///< of equals the first is taken
  Stage stage;
  size_t recomputation = 0;  ///< the first of the choices that may fit

  bool operator<(const Node& other) const {  // a queue gives the greatest
    return std::tie(seconds, key) > std::tie(other.seconds, other.key);
  }
};

/// The least microbatches of the timed replica in a step.
int64_t least_microbatches(const std::vector<DistributedStep>& steps) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const DistributedStep& step : steps)
    least = std::min<int64_t>(
        least, std::ranges::count_if(step.plan.replicas.front(),
                                     [](const MicrobatchPlan& part) { return !part.empty(); }));
  return least;
}

/// Knowledge of grids from the plan of one of their layouts.
struct Planned {
  std::vector<int> node_of;  ///< of each logical rank
  StepTimer timer;
  detail::ShardingFloor floor;

  Planned(const Plan& plan, const StepSamples& samples, DistributedSteps& steps,
          const Hardware& hardware, std::vector<int> nodes)
      : node_of(std::move(nodes)),
        timer(plan, samples, steps, hardware, node_of),
        floor(plan, least_microbatches(steps.of(plan)), hardware, node_of) {}
};

/// Bounds of grids by what is recomputed, made where they are asked for.
class Recomputing {
 public:
  struct Least {
    double seconds = 0;
    std::vector<int64_t> activations;  ///< bytes of each stage group
  };

  /// `plan` needs no slots.
  Recomputing(Plan plan, const StepTimer& timer, const std::vector<AutoOption>& choices,
              UnitMemoryCache& memory)
      : plan_(std::move(plan)),
        timer_(timer),
        memory_(memory),
        choices_(choices),
        known_(choices.size()),
        microbatches_(static_cast<size_t>(predicted_microbatches(plan_)), full_microbatch(plan_)) {
    for (Sharding& sharding : plan_.shardings) {  // nothing of shards is on its way
      sharding.shards = 1;
      sharding.offloads = false;
    }
  }

  const Least& of(size_t choice) {
    std::optional<Least>& known = known_[choice];
    if (known) return *known;
    known.emplace();
    ModelOptions& options = plan_.options.model;
    const bool is_auto = choices_[choice].is_auto();
    options.activation_checkpointing = is_auto ? AutoOption::of_count(0) : choices_[choice];
    plan_.recomputed = recomputed_units(options, plan_.model);
    known->seconds = timer_.bound(plan_);
    known->activations = activations();
    if (!is_auto) return *known;
    for (const AutoOption& least : {AutoOption::selective(), AutoOption::of_count(1)}) {
      options.activation_checkpointing = least;
      plan_.recomputed = recomputed_units(options, plan_.model);
      const std::vector<int64_t> found = activations();
      for (size_t group = 0; group < found.size(); ++group)
        known->activations[group] = std::min(known->activations[group], found[group]);
    }
    return *known;
  }

 private:
  std::vector<int64_t> activations() {
    const bool trains = plan_.options.run.mode == RunMode::Train;
    std::vector<int64_t> bytes;
    for (int group = 0; group < std::ssize(plan_.pipeline.stage_groups); ++group)
      bytes.push_back(
          detail::peak_of_step(plan_, group, microbatches_, 0, !trains, &memory_).bytes);
    return bytes;
  }

  Plan plan_;
  const StepTimer& timer_;
  UnitMemoryCache& memory_;
  const std::vector<AutoOption>& choices_;
  std::vector<std::optional<Least>> known_;
  std::vector<MicrobatchSizes> microbatches_;
};

class LayoutSearch {
 public:
  LayoutSearch(const SearchRequest& request, const MakeSamples& samples, size_t most)
      : request_(request),
        make_samples_(samples),
        most_(most),
        limit_(memory_limit(request)),
        model_(detail::searched_model(request)),
        grids_(detail::list_grids(request, model_)),
        recomputations_(detail::list_recomputations(request)),
        shardings_(grids_.size()),
        planned_(grids_.size()),
        floors_({request_, model_, grids_, recomputations_, facts_,
                 [this](size_t grids) { return first_plan(grids); }}) {}

  SearchResult run() {
    const std::vector<std::optional<double>> seconds = floors_.by_kernels();
    for (size_t g = 0; g < grids_.size(); ++g)
      if (seconds[g]) queue_.push({*seconds[g], {g}, Stage::Listed});
    while (!queue_.empty() && result_.best.size() < most_) {
      const Node node = queue_.top();
      queue_.pop();
      if (node.stage == Stage::Listed)
        queue_.push({std::max(node.seconds, floors_.by_memory(node.key.grids, limit_)), node.key,
                     Stage::Fitted});
      else if (node.stage == Stage::Fitted)
        bound_grids(node.key.grids);
      else if (node.stage == Stage::Bounded)
        time_layout(node);
      else
        result_.best.push_back(std::move(timed_.extract(node.key).mapped()));
    }
    result_.grids = std::ssize(grids_);
    if (grids_.empty()) refuse_deck();
    if (result_.planned == 0) throw PlanError(no_layout());
    for (FoundLayout& layout : result_.best) complete(layout);
    keep_fast_refusals();
    return std::move(result_);
  }

 private:
  /// The first sharding of the grids that can be planned.
  std::optional<Plan> first_plan(size_t grids) {
    if (shardings_[grids].empty())
      shardings_[grids] = detail::list_shardings(request_, model_, grids_[grids]);
    std::optional<Plan> plan;
    for (size_t s = 0; s < shardings_[grids].size() && !plan; ++s) plan = light_plan({grids, s}, 0);
    if (plan && !facts_) facts_.emplace(*plan, make_samples_(*plan));
    return plan;
  }

  /// Bounds a grid by its first sharding that can be planned; the others have the same kernels.
  void bound_grids(size_t grids) {
    const std::optional<Plan> plan = first_plan(grids);
    if (!plan) return;
    ++result_.planned;
    planned_[grids] = std::make_unique<Planned>(*plan, facts_->samples, facts_->steps,
                                                request_.hardware, order_of(*plan).node_of_logical);
    Recomputing recomputing(*plan, planned_[grids]->timer, recomputations_, facts_->memory);
    for (size_t s = 0; s < shardings_[grids].size(); ++s) bound_sharding({grids, s}, recomputing);
  }

  void bound_sharding(const LayoutKey& key, Recomputing& recomputing) {
    const detail::ShardingFloor::Least least = planned_[key.grids]->floor.of(options_of(key));
    const auto seconds = [&](size_t choice) {
      double bound = recomputing.of(choice).seconds;
      // On slow memory the next choice, which is tried where this does not fit, may take less time.
      if (recomputations_[choice].is_selective() && choice + 1 < recomputations_.size())
        bound = std::min(bound, recomputing.of(choice + 1).seconds);
      return kRounding * (request_.hardware.device.overlaps ? std::max(bound, least.streams)
                                                            : bound + least.streams) +
             least.update;
    };
    if (const int64_t owned = std::ranges::max(least.owned); owned > limit_)
      return refuse_memory(key, owned, " by what ranks own alone", seconds(0));
    int64_t most = 0;
    for (size_t choice = 0; choice < recomputations_.size(); ++choice) {
      const std::vector<int64_t>& activations = recomputing.of(choice).activations;
      most = 0;
      for (size_t p = 0; p < activations.size(); ++p)
        most = std::max(most, least.held[p] + activations[p]);
      if (most <= limit_) return queue_.push({seconds(choice), key, Stage::Bounded, choice});
    }
    refuse_memory(key, most,
                  std::string(" or more") +
                      (recomputations_.size() > 1 ? ", with every unit recomputed" : ""),
                  seconds(recomputations_.size() - 1));
  }

  /// Times a layout with the first choice of recomputation that fits.
  void time_layout(Node node) {
    std::optional<Plan> light = light_plan(node.key, node.seconds);
    if (!light) return;
    if (const int64_t owned = owned_bytes_of(*light); owned > limit_)
      return refuse_memory(node.key, owned, " by what ranks own alone", node.seconds);
    std::optional<Plan> plan = full_plan(std::move(*light), node.key, node.seconds);
    if (!plan) return;
    MemoryEstimate needed;
    for (size_t r = node.recomputation; r < recomputations_.size(); ++r) {
      if (r > 0) {
        plan->options.model.activation_checkpointing = recomputations_[r];
        plan->recomputed = recomputed_units(plan->options.model, plan->model);
      }
      needed = memory_of(*plan);
      if (needed.with_graphs() <= limit_) break;
    }
    if (needed.with_graphs() > limit_)
      return refuse_memory(node.key, needed.with_graphs(),
                           (needed.peak_at.empty() ? "" : " at " + needed.peak_at) +
                               (recomputations_.size() > 1 ? ", with every unit recomputed" : ""),
                           node.seconds);
    ++result_.timed;
    StepTime time = planned_[node.key.grids]->timer.time(*plan);
    node.stage = Stage::Timed;
    node.seconds = time.seconds;
    queue_.push(node);
    timed_[node.key] = {.options = plan->options,
                        .time = std::move(time),
                        .memory = needed.with_graphs(),
                        .memory_at = needed.peak_at};
  }

  /// Estimates the stage group that needs most, or the first that is beyond the limit.
  MemoryEstimate memory_of(const Plan& plan) {
    const std::vector<MicrobatchSizes> full(static_cast<size_t>(predicted_microbatches(plan)),
                                            full_microbatch(plan));
    MemoryEstimate most;
    for (const StageGroup& group : plan.pipeline.stage_groups) {
      MemoryEstimate own = estimate_run(plan, group.first_rank, full, &facts_->memory);
      if (own.with_graphs() > most.with_graphs()) most = std::move(own);
      if (most.with_graphs() > limit_) break;
    }
    return most;
  }

  Options options_of(const LayoutKey& key) const {
    return detail::with_layout(request_, model_, grids_[key.grids],
                               shardings_[key.grids][key.sharding], recomputations_.front());
  }

  Plan made_plan(const Options& options) const {
    return options.model.activation_checkpointing.is_auto()
               ? make_fitting_plan(options, request_.config_json, request_.ranks, request_.profile)
               : make_plan(options, model_, request_.config_json, request_.ranks, request_.profile);
  }

  std::optional<Plan> light_plan(const LayoutKey& key, double seconds) {
    try {
      return make_plan_without_slots(options_of(key), model_, request_.config_json, request_.ranks,
                                     request_.profile);
    } catch (const PlanError& error) {
      refuse(key, error.what(), seconds);
      return {};
    }
  }

  std::optional<Plan> full_plan(Plan light, const LayoutKey& key, double seconds) {
    try {
      return light.options.model.activation_checkpointing.is_auto() ? made_plan(light.options)
                                                                    : with_slots(std::move(light));
    } catch (const PlanError& error) {
      refuse(key, error.what(), seconds);
      return {};
    }
  }

  /// Records why the deck's own layout is refused, for a search without any grid.
  void refuse_deck() {
    try {
      make_plan_without_slots(request_.options, model_, request_.config_json, request_.ranks,
                              request_.profile);
    } catch (const PlanError& error) {
      first_refusal_ = error.what();
    }
  }

  void refuse(const LayoutKey& key, const std::string& reason, double seconds) {
    if (first_refusal_.empty()) first_refusal_ = reason;
    if (seconds > 0) refused_.emplace_back(seconds, 0, key, reason);
  }
  void refuse_memory(const LayoutKey& key, int64_t bytes, const std::string& where,
                     double seconds) {
    const int64_t excess = bytes - limit_;
    const double mib = static_cast<double>(excess) / (1 << 20);
    const std::string size = mib < 1      ? std::to_string(excess) + " bytes"
                             : mib < 1024 ? formatted("%.2f MiB", mib)
                                          : formatted("%.2f GiB", mib / 1024);
    refused_.emplace_back(seconds, excess, key, "exceeds memory by " + size + where);
  }

  RankOrder order_of(const Plan& plan) const {
    return planned_order(plan, request_.ranks_per_node);
  }

  /// Adds what only layouts that are shown need.
  void complete(FoundLayout& layout) {
    layout.overrides = overrides_of(request_.options, layout.options);
    const Plan plan = made_plan(layout.options);
    const RankOrder order = order_of(plan);
    layout.checkpoint_bytes = static_cast<double>(written_bytes_of(plan));
    if (&layout == &result_.best.front()) {
      std::vector<TimelineSpan> spans;
      step_time(plan, facts_->samples, request_.hardware, order.node_of_logical, &spans);
      result_.drawing = draw_layout(plan, order, std::move(spans));
    }
    if (order.nodes() == 1) return;
    for (const auto& [group, bytes] : traffic_between_nodes(plan, order, facts_->samples))
      layout.between_nodes += static_cast<double>(bytes);
  }

  /// Keeps those that may be fastest; of equals those that need least memory.
  void keep_fast_refusals() {
    const double last = result_.best.empty() ? HUGE_VAL : result_.best.back().time.seconds;
    std::ranges::sort(refused_);
    for (const auto& [seconds, excess, key, reason] : refused_)
      if (seconds <= last && result_.refused.size() < kMostRefused)
        result_.refused.push_back(
            {overrides_of(request_.options, options_of(key)), reason, seconds});
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
  std::vector<std::unique_ptr<Planned>> planned_;               ///< of each of grids_
  std::optional<detail::SearchFacts> facts_;                    ///< known from the first plan on
  detail::GridFloors floors_;
  std::priority_queue<Node> queue_;
  std::map<LayoutKey, FoundLayout> timed_;
  /// Seconds at least, bytes beyond the limit, the layout, and the reason.
  std::vector<std::tuple<double, int64_t, LayoutKey, std::string>> refused_;
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
