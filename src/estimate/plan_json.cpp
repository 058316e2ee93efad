// SPDX-License-Identifier: Apache-2.0
#include "estimate/plan_json.hpp"

#include <nlohmann/json.hpp>

namespace zea {

using Json = nlohmann::ordered_json;

LayoutDrawing draw_layout(const Plan& plan, const RankOrder& order,
                          std::vector<TimelineSpan> spans) {
  const auto ranks = static_cast<std::ptrdiff_t>(plan.mesh.ranks_per_replica());
  return {.grids = plan.mesh.modules,
          .stage_groups = plan.pipeline.stage_groups,
          .replicas = plan.mesh.replicas(),
          .node_of_rank = {order.node_of_logical.begin(), order.node_of_logical.begin() + ranks},
          .spans = std::move(spans)};
}

Json json_of(const LayoutDrawing& drawing) {
  Json json{{"replicas", drawing.replicas},
            {"node_of_rank", drawing.node_of_rank},
            {"modules", Json::array()},
            {"stage_groups", Json::array()},
            {"timeline", Json::array()}};
  for (const ModuleGrid& grid : drawing.grids)
    json["modules"].push_back({{"name", grid.module},
                               {"first_rank", grid.first_rank},
                               {"pp", grid.pp},
                               {"encoder_dp", grid.encoder_dp},
                               {"cp", grid.cp},
                               {"ep", grid.ep()},
                               {"etp", grid.expert_tp()},
                               {"tp", grid.tp}});
  for (const StageGroup& group : drawing.stage_groups)
    json["stage_groups"].push_back(
        {{"name", group.name}, {"first_rank", group.first_rank}, {"ranks", group.ranks}});
  for (const TimelineSpan& span : drawing.spans)
    json["timeline"].push_back({{"stage_group", span.group},
                                {"what", span.what},
                                {"stage", span.stage},
                                {"microbatch", span.microbatch},
                                {"begin", span.begin},
                                {"end", span.end}});
  return json;
}

Json json_of(const StepTime& time) {
  Json exposed, stages = Json::array();
  const WaitSeconds waits = time.exposed();
  for (size_t i = 0; i < waits.size(); ++i) exposed[wait_name(static_cast<Wait>(i))] = waits[i];
  for (const StageTime& stage : time.stages)
    stages.push_back({{"name", stage.name},
                      {"ranks", stage.ranks},
                      {"kernels", stage.compute},
                      {"recomputed", stage.recomputed},
                      {"exposed", stage.exposed_sum()},
                      {"optimizer", stage.optimizer}});
  return {{"seconds", time.seconds},
          {"tokens_per_second", time.tokens_per_second},
          {"mfu", time.mfu},
          {"mfu_unmasked", time.mfu_unmasked},
          {"idle_share", time.idle_share()},
          {"exposed_seconds", exposed},
          {"stages", stages}};
}

std::string plan_json(const Plan& plan, const StepTime& time, const LayoutDrawing& drawing,
                      const Hardware& hardware) {
  Json json{{"ranks", plan.world_size()},
            {"hardware", hardware.identity.name},
            {"figures", hardware.identity.source.name()}};
  json.update(json_of(time));
  json["drawing"] = json_of(drawing);
  return json.dump(1) + "\n";
}

}  // namespace zea
