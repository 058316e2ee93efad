// SPDX-License-Identifier: Apache-2.0
// A simulated step as text: a line for each stage group, time to the right. A pass is its letter
// and the number of its microbatch, drawn as long as it takes; without room for the number, only
// the letter.
#include <algorithm>
#include <cmath>

#include "schedule/simulate.hpp"

namespace zea {
namespace {

char letter_of(PassKind kind) {
  constexpr char kLetters[] = {'F', 'B', 'B', 'W'};
  return kLetters[static_cast<int>(kind)];
}

/// "F3"; "F3b" in the second of several stages at a stage group.
std::string label_of(const Pass& pass, const std::vector<int>& stages) {
  std::string label = letter_of(pass.kind) + std::to_string(pass.microbatch);
  const auto position = std::find(stages.begin(), stages.end(), pass.stage) - stages.begin();
  if (stages.size() > 1) label += static_cast<char>('a' + position % 26);
  return label;
}

std::string row_of(const std::vector<TimedPass>& passes, const std::vector<int>& stages,
                   double makespan, int columns) {
  std::string row(columns, '.');
  const auto column = [&](double time) {
    const double column = makespan > 0 ? time / makespan * columns : 0;
    return std::clamp(static_cast<int>(std::lround(column)), 0, columns);
  };
  for (const TimedPass& timed : passes) {
    const int begin = column(timed.begin), width = column(timed.end) - begin;
    const std::string label = label_of(timed.pass, stages);
    if (width < 1) continue;
    row.replace(begin, width, std::string(width, '-'));
    const bool fits = static_cast<int>(label.size()) <= width;
    const std::string shown = fits ? label : label.substr(0, 1);
    row.replace(begin, shown.size(), shown);
  }
  return row;
}

}  // namespace

std::string draw(const Simulation& simulation, const Pipeline& pipeline, int columns) {
  size_t widest = 0;
  const auto name_of = [&](size_t group) {
    const std::string& name = pipeline.stage_groups[group].name;
    return name.empty() ? "group " + std::to_string(group) : name;
  };
  for (size_t p = 0; p < simulation.groups.size(); ++p)
    widest = std::max(widest, name_of(p).size());
  std::string text;
  for (size_t p = 0; p < simulation.groups.size(); ++p) {
    std::string name = name_of(p);
    name.resize(widest, ' ');
    text += name + " |" +
            row_of(simulation.groups[p], pipeline.stage_groups[p].stages, simulation.makespan,
                   columns) +
            "|\n";
  }
  return text;
}

}  // namespace zea
