// SPDX-License-Identifier: Apache-2.0
#include "schedule/stage_traffic.hpp"

#include <map>

namespace zea::detail {
std::vector<StageTraffic> make_stage_traffic(const Pipeline& pipeline, const ModelSpec& model) {
  std::vector<StageTraffic> traffic(pipeline.stages.size());
  // The first stage of each place that reads a unit: it asks for the output, and when it is through
  // with backward, so are the others.
  std::map<std::pair<int, int>, int> readers;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const int stage = pipeline.stage_of_unit[u];
    for (const UnitInput& input : model.units[u].inputs) {
      const int source = pipeline.stage_of_unit[input.unit];
      if (source == stage) continue;
      if (pipeline.stages[source].place == pipeline.stages[stage].place)
        traffic[source].readers.push_back(stage);
      else
        readers.try_emplace({input.unit, pipeline.stages[stage].place}, stage);
    }
  }
  const std::vector<bool> has_gradient = model.units_with_gradient();
  for (const PipelineEdge& edge : edges_of(pipeline, model)) {
    const int first = readers.at({edge.unit, edge.to});
    const int source = pipeline.stage_of_unit[edge.unit];
    traffic[source].outputs.push_back({edge.unit, edge.to});
    traffic[first].inputs.push_back({edge.unit, edge.from});
    if (!has_gradient[edge.unit]) continue;
    // Backward walks the other way: from the last unit to the first.
    auto& in = traffic[source].gradients_in;
    auto& out = traffic[first].gradients_out;
    in.insert(in.begin(), {edge.unit, edge.to});
    out.insert(out.begin(), {edge.unit, edge.from});
  }
  return traffic;
}

}  // namespace zea::detail
