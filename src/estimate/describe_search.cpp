// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "deck/deck.hpp"
#include "deck/key_table.hpp"
#include "estimate/layout_search.hpp"

namespace zea {
namespace {

double gibibytes(double bytes) {
  return bytes / (int64_t{1} << 30);
}

/// The parts of a step of all ranks, whose sum is its time.
struct TimeParts {
  double kernels = 0, recomputed = 0, update = 0, idle = 0;
  WaitSeconds exposed = {};
};

TimeParts parts_of(const StepTime& time) {
  TimeParts parts{.exposed = time.exposed()};
  double ranks = 0;
  for (const StageTime& stage : time.stages) ranks += stage.ranks;
  for (const StageTime& stage : time.stages) {
    parts.kernels += (stage.compute - stage.recomputed) * stage.ranks / ranks;
    parts.recomputed += stage.recomputed * stage.ranks / ranks;
    parts.update += stage.optimizer * stage.ranks / ranks;
  }
  parts.update += time.norm;
  parts.idle = time.idle_share() * time.seconds - time.norm;
  return parts;
}

/// Why a layout takes longer than the best: the part that grew most.
std::string loss_of(const StepTime& time, const StepTime& best) {
  const TimeParts own = parts_of(time), other = parts_of(best);
  const auto share = [&](double seconds, const StepTime& of) {
    return of.seconds > 0 ? 100 * std::max(0.0, seconds) / of.seconds : 0;
  };
  std::vector<std::pair<double, std::string>> losses{
      {own.idle - other.idle,
       formatted(
           "stage groups wait for each other %.1f %% of the step (the best: %.1f %%), most of them "
           "for ",
           share(own.idle, time), share(other.idle, best)) +
           time.slowest().name},
      {own.kernels - other.kernels,
       formatted("kernels take %.1f %% longer: GEMMs are smaller, or ranks have unequal shares",
                 other.kernels > 0 ? 100 * (own.kernels / other.kernels - 1) : 0)},
      {own.recomputed - other.recomputed,
       formatted("recomputation takes %.1f %% of the step", share(own.recomputed, time))},
      {own.update - other.update,
       formatted("the optimizer takes %.1f %% of the step (the best: %.1f %%)",
                 share(own.update, time), share(other.update, best))}};
  for (size_t i = 0; i < own.exposed.size(); ++i)
    losses.emplace_back(
        own.exposed[i] - other.exposed[i],
        std::string("communication of ") + wait_name(static_cast<Wait>(i)) +
            formatted(" that nothing hides takes %.1f %% of the step (the best: %.1f %%)",
                      share(own.exposed[i], time), share(other.exposed[i], best)));
  const auto& [seconds, sentence] = *std::ranges::max_element(losses);
  return time.seconds - best.seconds < 1e-3 * best.seconds ? "about as fast" : sentence;
}

std::string layout_text(const std::vector<std::string>& overrides) {
  return overrides.empty() ? "as the deck says" : join(overrides, " ");
}

double distance(const FoundLayout& layout, const SearchResult& result) {
  const double best = result.best.front().time.seconds;
  return best > 0 ? 100 * (layout.time.seconds / best - 1) : 0;
}

}  // namespace

std::string describe_search(const SearchRequest& request, const SearchResult& result) {
  std::string text =
      "layouts of " + std::to_string(request.ranks) + " ranks, " +
      std::to_string(request.ranks_per_node) + " a node, on " + request.hardware.identity.name +
      " (" + request.hardware.identity.source.name() + " figures), within " +
      formatted("%.4g GiB a rank: ", gibibytes(static_cast<double>(memory_limit(request)))) +
      std::to_string(result.grids) + " grids, " + std::to_string(result.planned) + " planned, " +
      std::to_string(result.timed) + " layouts timed\n";
  if (result.best.empty())
    text += "  none fits; the fastest that do not:\n";
  else
    text += "      s a step   tokens/s  MFU %  slower %  idle %  GiB a rank  GiB between nodes\n";
  int number = 0;
  for (const FoundLayout& layout : result.best)
    text +=
        formatted("  %2d  %8.4g  %9.4g  %5.1f  %8.1f  %6.1f  %10.2f  %17.3f\n", ++number,
                  layout.time.seconds, layout.time.tokens_per_second, 100 * layout.time.mfu,
                  distance(layout, result), 100 * layout.time.idle_share(),
                  gibibytes(static_cast<double>(layout.memory)), gibibytes(layout.between_nodes));
  number = 0;
  for (const FoundLayout& layout : result.best) {
    text += formatted("  %2d  ", ++number) + layout_text(layout.overrides);
    if (number > 1) text += "\n      " + loss_of(layout.time, result.best.front().time);
    text += "\n";
  }
  if (!result.refused.empty() && !result.best.empty())
    text += "  refused, though they may be faster than the last of these:\n";
  for (const RefusedLayout& layout : result.refused)
    text += formatted("  -   at least %.4g s  ", layout.seconds) + layout_text(layout.overrides) +
            "\n      " + layout.reason + "\n";
  if (!result.best.empty())
    for (const std::string& note : result.best.front().time.notes) text += "  note: " + note + "\n";
  return text;
}

std::string search_json(const SearchRequest& request, const SearchResult& result) {
  nlohmann::ordered_json json{{"ranks", request.ranks},
                              {"ranks_per_node", request.ranks_per_node},
                              {"hardware", request.hardware.identity.name},
                              {"figures", request.hardware.identity.source.name()},
                              {"memory_bytes", memory_limit(request)},
                              {"grids", result.grids},
                              {"planned", result.planned},
                              {"timed", result.timed},
                              {"layouts", nlohmann::ordered_json::array()},
                              {"refused", nlohmann::ordered_json::array()}};
  for (const FoundLayout& layout : result.best) {
    nlohmann::ordered_json own{{"overrides", layout.overrides}};
    own.update(json_of(layout.time));
    const bool is_best = &layout == &result.best.front();
    own["slower_percent"] = distance(layout, result);
    own["memory_bytes"] = layout.memory;
    own["memory_at"] = layout.memory_at;
    own["bytes_between_nodes"] = layout.between_nodes;
    if (layout.checkpoints)
      own["checkpoints"] = {{"save_seconds", layout.checkpoints->save_seconds},
                            {"every", layout.checkpoints->every},
                            {"goodput", layout.checkpoints->goodput}};
    own["why"] = is_best ? "" : loss_of(layout.time, result.best.front().time);
    if (is_best) own["drawing"] = json_of(result.drawing);
    json["layouts"].push_back(std::move(own));
  }
  for (const RefusedLayout& layout : result.refused)
    json["refused"].push_back({{"overrides", layout.overrides},
                               {"at_least_seconds", layout.seconds},
                               {"reason", layout.reason}});
  return json.dump(1) + "\n";
}

std::string deck_of_layout(const SearchRequest& request, const FoundLayout& layout) {
  Options options = layout.options, before = request.options;
  for (const std::string& section : list_sections(options)) add_module_section(before, section, {});
  std::map<std::string, std::string> known;
  for (const Key& key : list_keys(before)) known[key.path()] = toml_text(key.member);
  std::string text = formatted(
      "# By zea --plan for %d ranks, %d a node: %.4g s a step, %.2f GiB a rank.\n", request.ranks,
      request.ranks_per_node, layout.time.seconds, gibibytes(static_cast<double>(layout.memory)));
  std::string section;
  for (const Key& key : list_keys(options)) {
    const std::string value = toml_text(key.member);
    if (!request.options.given.contains(key.path()) && known[key.path()] == value) continue;
    if (key.section != section) text += "\n[" + key.section + "]\n";
    section = key.section;
    text += std::string(key.info.name) + " = " + value + "\n";
  }
  return text;
}

}  // namespace zea
