// SPDX-License-Identifier: Apache-2.0
#include "schedule/pipeline.hpp"

#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/error.hpp"

namespace zea {

int Pipeline::group_of_rank(int rank) const {
  for (size_t p = 0; p < stage_groups.size(); ++p)
    if (rank >= stage_groups[p].first_rank &&
        rank < stage_groups[p].first_rank + stage_groups[p].ranks)
      return static_cast<int>(p);
  throw InternalError("no group of the pipeline has rank " + std::to_string(rank) +
                      " of the replica");
}

std::string link_name(const StageGroup& from, const StageGroup& to) {
  return from.name + ">" + to.name;
}

Pipeline one_group(const ModelSpec& model, int ranks) {
  std::vector<int> units(model.units.size());
  std::iota(units.begin(), units.end(), 0);
  Pipeline pipeline;
  pipeline.stage_groups = {
      {.name = kDecoder + ".pp0", .first_rank = 0, .ranks = ranks, .stages = {0}}};
  pipeline.stages = {{.group = 0, .units = units}};
  pipeline.stage_of_unit.assign(units.size(), 0);
  return pipeline;
}

std::vector<PipelineEdge> edges_of(const Pipeline& pipeline, const ModelSpec& model) {
  // The key: stage and module of the output, and the stage group that reads it.
  const auto source_of = [&](int unit, int to) {
    return std::tuple(pipeline.stage_of_unit[unit], model.units[unit].module, to);
  };
  std::map<std::tuple<int, std::string, int>, int> first_readers;
  std::vector<std::set<int>> readers(model.units.size());
  for (size_t u = 0; u < model.units.size(); ++u)
    for (const UnitInput& input : model.units[u].inputs) {
      const int to = pipeline.group_of_unit(static_cast<int>(u));
      readers[input.unit].insert(to);
      first_readers.try_emplace(source_of(input.unit, to), static_cast<int>(u));
    }
  std::vector<PipelineEdge> edges;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const auto unit = static_cast<int>(u);
    const int from = pipeline.group_of_unit(unit);
    for (int to : readers[u])
      if (to != from) edges.push_back({unit, from, to, first_readers.at(source_of(unit, to))});
  }
  return edges;
}

}  // namespace zea
