// SPDX-License-Identifier: Apache-2.0
#include "preflight/measurements.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace zea {
namespace {

/// CUDA itself takes the rest; on a small GPU a desktop may take more.
constexpr double kLeastGpuFreeShare = 0.8;
constexpr int64_t kUsualGpuBytes = int64_t{4} << 30;

}  // namespace

std::vector<std::vector<std::pair<int, int>>> pair_rounds(int nodes) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  const int pairs = nodes > 2 ? nodes : nodes - 1;
  for (int first = 0; first < pairs; ++first) {
    const bool is_last_of_odd = nodes > 2 && nodes % 2 == 1 && first == nodes - 1;
    const size_t round = is_last_of_odd ? 2 : first % 2;
    if (rounds.size() <= round) rounds.resize(round + 1);
    rounds[round].emplace_back(first, (first + 1) % nodes);
  }
  return rounds;
}

bool is_gpu_taken(const RankFacts& rank) {
  return static_cast<double>(rank.gpu_free_bytes) <
             kLeastGpuFreeShare * static_cast<double>(rank.gpu_bytes) &&
         rank.gpu_bytes - rank.gpu_free_bytes > kUsualGpuBytes;
}

bool can_sum_on_gpus(const std::vector<RankFacts>& ranks) {
  return std::ranges::all_of(ranks, [](const RankFacts& rank) {
    return rank.gpu_fault.empty() && !is_gpu_taken(rank) &&
           rank.gpu_free_bytes >= kLeastGpuRoomBytes;
  });
}

std::vector<NodeView> views_of(const Measurements& measured) {
  std::vector<NodeView> views(measured.nodes.size());
  for (const RankFacts& facts : measured.ranks)
    views[std::ranges::find(measured.nodes, facts.node) - measured.nodes.begin()].ranks.push_back(
        &facts);
  return views;
}

double median_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return value <= 0; });
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> rates_inside(const Measurements& measured) {
  std::vector<double> rates;
  for (const LinkRate& link : measured.inside) rates.push_back(link.rate);
  return rates;
}

std::vector<double> rates_across(const Measurements& measured) {
  std::vector<double> rates(measured.nodes.size());
  for (const LinkRate& pair : measured.pairs)
    for (const int node : pair.nodes) rates[node] = std::max(rates[node], pair.rate);
  return rates;
}

std::string decimal_text(double value) {
  return formatted("%.2f", value);
}

std::string gib_text(int64_t bytes) {
  constexpr double kGib = 1 << 30;
  return bytes < 0 ? "?" : decimal_text(static_cast<double>(bytes) / kGib) + " GiB";
}

std::string rate_text(double rate) {
  if (rate <= 0) return "-";
  return rate < 1e9 ? decimal_text(rate / 1e6) + " MB/s" : decimal_text(rate / 1e9) + " GB/s";
}

}  // namespace zea
