// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <set>

#include "estimate/describe.hpp"

namespace zea {
namespace {

using Cell = std::function<std::string(const ComparedLayout&)>;

std::string mib(int64_t bytes) {
  return formatted("%.3f", static_cast<double>(bytes) / (1 << 20));
}

std::string mib_per_step(int64_t bytes, const StepFacts& facts) {
  return mib(bytes / facts.steps);
}

class Table {
 public:
  explicit Table(std::vector<const ComparedLayout*> columns) : columns_(std::move(columns)) {}

  void add(const std::string& name, const Cell& cell) {
    std::vector<std::string> cells;
    for (const ComparedLayout* layout : columns_) cells.push_back(cell(*layout));
    rows_.emplace_back(name, std::move(cells));
  }

  std::string text() const {
    size_t name = 0, width = 8;
    for (const auto& [row, cells] : rows_) {
      name = std::max(name, row.size());
      for (const std::string& cell : cells) width = std::max(width, cell.size());
    }
    std::string text;
    for (const auto& [row, cells] : rows_) {
      text += formatted("  %-*s", static_cast<int>(name), row.c_str());
      for (const std::string& cell : cells)
        text += formatted("  %*s", static_cast<int>(width), cell.c_str());
      text += "\n";
    }
    return text;
  }

 private:
  std::vector<const ComparedLayout*> columns_;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows_;
};

/// The groups of ranks in which a layout's rank with most traffic sends.
std::set<std::string> groups_of(const std::vector<const ComparedLayout*>& layouts) {
  std::set<std::string> groups;
  for (const ComparedLayout* layout : layouts)
    for (const auto& [group, bytes] : layout->facts->most_sent().sent) groups.insert(group);
  return groups;
}

}  // namespace

std::string compare_layouts(const std::string& heading,
                            const std::vector<ComparedLayout>& layouts) {
  std::string text = "layouts, compared by " + heading + "\n";
  std::vector<const ComparedLayout*> planned;
  std::vector<std::string> numbers;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    text += "  [" + number + "] " + layouts[i].name;
    if (!layouts[i].facts) {
      text += ": refused: " + layouts[i].refusal + "\n";
      continue;
    }
    planned.push_back(&layouts[i]);
    numbers.push_back("[" + number + "]");
    text += "\n";
  }
  text += "per step, means\n";
  Table table(planned);
  auto number = numbers.begin();
  table.add("", [&](const ComparedLayout&) { return *number++; });
  const auto add = [&](const std::string& name, const auto& of_facts) {
    table.add(name, [&](const ComparedLayout& layout) { return of_facts(*layout.facts); });
  };
  table.add("ranks", [](const auto& layout) { return std::to_string(layout.world_size); });
  table.add("replicas", [](const auto& layout) { return std::to_string(layout.replicas); });
  add("samples", [](const StepFacts& facts) { return formatted("%.4g", facts.samples); });
  add("tokens", [](const StepFacts& facts) { return formatted("%.0f", facts.tokens); });
  add("microbatches of a replica",
      [](const StepFacts& facts) { return formatted("%.4g", facts.microbatches); });
  add("% of the rows' tokens filled",
      [](const StepFacts& facts) { return formatted("%.1f", 100 * facts.fill); });
  add("TFLOP of the model",
      [](const StepFacts& facts) { return formatted("%.4g", facts.model_flops / 1e12); });
  add("TFLOP of the rank with most, recomputation included",
      [](const StepFacts& facts) { return formatted("%.4g", facts.slowest_flops / 1e12); });
  add("% of the ranks' time idle, by FLOPs alone",
      [](const StepFacts& facts) { return formatted("%.1f", 100 * facts.idle_share); });
  add("MiB that rank 0 sends",
      [](const StepFacts& facts) { return mib_per_step(facts.traffic.front().total(), facts); });
  add("MiB that the rank with most sends",
      [](const StepFacts& facts) { return mib_per_step(facts.most_sent().total(), facts); });
  for (const std::string& group : groups_of(planned))
    add("  in " + group, [&](const StepFacts& facts) {
      const Traffic& sent = facts.most_sent().sent;
      const auto found = sent.find(group);
      return found == sent.end() ? std::string("-") : mib_per_step(found->second, facts);
    });
  add("MiB of device memory, of the rank with most",
      [](const StepFacts& facts) { return mib(facts.memory.with_graphs()); });
  table.add("  in a step of full rows",
            [](const ComparedLayout& layout) { return mib(layout.full_bytes); });
  const auto has_time = [](const ComparedLayout* layout) { return layout->time.has_value(); };
  if (!planned.empty() && std::ranges::all_of(planned, has_time)) {
    const auto add_time = [&](const std::string& name, const auto& of_time) {
      table.add(name, [&](const ComparedLayout& layout) { return of_time(*layout.time); });
    };
    add_time("seconds", [](const StepTime& time) { return formatted("%.4g", time.seconds); });
    add_time("tokens/s",
             [](const StepTime& time) { return formatted("%.4g", time.tokens_per_second); });
    add_time("MFU %", [](const StepTime& time) { return formatted("%.1f", 100 * time.mfu); });
    for (int i = 0; i < kWaits; ++i)
      add_time(std::string("% of it that waits for ") + wait_name(static_cast<Wait>(i)),
               [i](const StepTime& time) {
                 return formatted("%.1f",
                                  100 * time.exposed()[static_cast<size_t>(i)] / time.seconds);
               });
    add_time("% of it in which stages wait for others",
             [](const StepTime& time) { return formatted("%.1f", 100 * time.idle_share()); });
    return text + table.text();
  }
  return text + table.text() +
         "  FLOPs and bytes are no seconds: what a FLOP or a byte takes differs from machine to "
         "machine, and communication hides behind computation\n";
}

}  // namespace zea
