// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "core/text.hpp"
#include "preflight/health_check.hpp"

namespace zea {
namespace {

using Row = std::vector<std::string>;

std::string table_of(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column)
      line += row[column] + std::string(widths[column] + 2 - row[column].size(), ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string num_cores(const NodeView& node) {
  std::set<int> cores;
  for (const RankFacts* rank : node.ranks) cores.insert(rank->cores.begin(), rank->cores.end());
  return std::to_string(cores.size());
}

std::string gpus_of(const NodeView& node) {
  std::set<std::string> ids;
  for (const RankFacts* rank : node.ranks)
    if (!rank->gpu_id.empty()) ids.insert(rank->gpu_id);
  return ids.empty() ? "none" : std::to_string(ids.size()) + " x " + node.first().gpu_name;
}

std::string clock_text(const NodeClock& clock) {
  return decimal_text(1e3 * clock.ahead_seconds) + " +- " +
         decimal_text(1e3 * clock.bound_seconds) + " ms";
}

std::string node_table(const Measurements& measured) {
  std::vector<Row> rows = {{"node", "ranks", "cores"}};
  if (measured.on_gpus) rows[0].emplace_back("GPUs");
  for (const char* name : {"memory free", "/dev/shm free", "disk free", "disk write", "sum inside",
                           "sum across", "clock"})
    rows[0].emplace_back(name);
  const std::vector<double> inside = rates_inside(measured), across = rates_across(measured);
  const std::vector<NodeView> nodes = views_of(measured);
  for (size_t index = 0; index < nodes.size(); ++index) {
    const NodeView& node = nodes[index];
    const RankFacts& first = node.first();
    Row row = {node.name(), std::to_string(node.ranks.size()), num_cores(node)};
    if (measured.on_gpus) row.push_back(gpus_of(node));
    for (const std::string& text :
         {gib_text(first.memory_free_bytes), gib_text(first.shared_free_bytes),
          gib_text(first.disk_free_bytes), rate_text(first.disk_rate), rate_text(inside[index]),
          rate_text(across[index]), clock_text(measured.clocks[index])})
      row.push_back(text);
    rows.push_back(std::move(row));
  }
  return table_of(rows);
}

std::string expectation(const std::string& what, const std::vector<double>& rates,
                        const char* least) {
  const auto measured = std::ranges::count_if(rates, [](double rate) { return rate > 0; });
  if (measured < 2) return "";
  return what + " " + rate_text(median_of(rates)) + " (the median of the nodes), at least " +
         least + " of it; ";
}

std::string expectations(const Measurements& measured) {
  std::vector<double> disks;
  for (const NodeView& node : views_of(measured)) disks.push_back(node.first().disk_rate);
  const std::string text = expectation("inside", rates_inside(measured), "half") +
                           expectation("across", rates_across(measured), "half") +
                           expectation("disk", disks, "a quarter");
  if (text.empty()) return "expected: there is no other node to compare with\n";
  return "expected: " + text.substr(0, text.size() - 2) + "\n";
}

std::string sums(const Measurements& measured) {
  const LinkRate& all = measured.everyone;
  if (measured.ranks.size() < 2) return "all ranks: one, which sums with nobody\n";
  return "all " + std::to_string(measured.ranks.size()) + " ranks: an all-reduce is " +
         (all.is_right ? "right" : "wrong") + ", at " + rate_text(all.rate) +
         (measured.links_on_gpus ? " between GPUs" : " between hosts") + "\n";
}

std::string sentence(const Finding& finding) {
  std::string text = finding.is_sick ? "sick: " : "note: ";
  if (!finding.nodes.empty())
    text += (finding.nodes.size() > 1 ? "nodes " : "node ") + join(finding.nodes) + ": ";
  text += finding.found + "; " + finding.remedy;
  if (finding.is_sick && !finding.nodes.empty())
    text += std::string(", or exclude ") + (finding.nodes.size() > 1 ? "them" : "it") +
            " with --exclude=" + join(finding.nodes, ",");
  return text + "\n";
}

}  // namespace

std::string report(const Measurements& measured, const std::vector<Finding>& findings) {
  std::string text = node_table(measured) + sums(measured) + expectations(measured);
  for (const bool is_sick : {true, false})
    for (const Finding& finding : findings)
      if (finding.is_sick == is_sick) text += sentence(finding);
  if (!has_sick(findings)) text += "no node is sick\n";
  return text;
}

}  // namespace zea
