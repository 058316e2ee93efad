// SPDX-License-Identifier: Apache-2.0
#include "estimate/draw_ranks.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

using Lines = std::vector<std::string>;

/// The first ones and the last, where there are more than can be shown.
Lines shortened(Lines lines, int most) {
  const int left_out = static_cast<int>(lines.size()) - most + 1;
  if (left_out <= 1) return lines;
  lines.erase(lines.begin() + most - 2, lines.end() - 1);
  lines.insert(lines.end() - 1, "... " + std::to_string(left_out) + " more");
  return lines;
}

/// Those of one stage of a module: "[0-7] [8-15]".
std::string tp_groups(const ModuleGrid& grid, int first_rank, const std::vector<int>& ranks) {
  constexpr int kMost = 8;
  Lines groups;
  for (size_t begin = 0, end; begin < ranks.size(); begin = end) {
    const auto group_of = [&](size_t r) { return (ranks[r] - first_rank) / grid.tp; };
    for (end = begin; end < ranks.size() && group_of(end) == group_of(begin);) ++end;
    groups.push_back("[" + runs_text({ranks.begin() + begin, ranks.begin() + end}) + "]");
  }
  std::string text;
  for (const std::string& group : shortened(groups, kMost)) text += " " + group;
  return text;
}

}  // namespace

std::string runs_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (begin ? " " : "") + std::to_string(ranks[begin]);
    if (end - begin > 1) text += "-" + std::to_string(ranks[end - 1]);
    begin = end;
  }
  return text;
}

std::string draw_ranks(const MeshShape& shape, const std::vector<int>& ranks) {
  const int size = shape.ranks_per_replica();
  std::string text;
  for (const ModuleGrid& grid : shape.modules) {
    const int first = ranks.front() / size * size + grid.first_rank;
    Lines lines;
    for (int stage = 0; stage < grid.pp; ++stage) {
      std::vector<int> here;
      std::ranges::copy_if(ranks, std::back_inserter(here), [&](int rank) {
        return shape.has(rank, grid.module) && shape.coordinate(rank, grid.module).pp == stage;
      });
      if (here.empty()) continue;
      std::string name = grid.module + (grid.pp > 1 ? ".pp" + std::to_string(stage) : "");
      name.resize(std::max<size_t>(name.size(), 12), ' ');
      lines.push_back(name + tp_groups(grid, first, here));
    }
    for (const std::string& line : shortened(lines, kMostListed)) text += "    " + line + "\n";
  }
  return text;
}

}  // namespace zea::detail
