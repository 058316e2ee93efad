// SPDX-License-Identifier: Apache-2.0
// Plans with their seconds as JSON, which postprocess/plot_plan.py reads.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "estimate/step_time.hpp"
#include "layout/rank_order.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// The contents of a drawing: the places of modules and stage groups, and the first step of the
/// stage groups of the replica with the most FLOPs.
struct LayoutDrawing {
  std::vector<ModuleGrid> grids;
  std::vector<StageGroup> stage_groups;
  int replicas = 1;
  std::vector<int> node_of_rank;  ///< of each rank of the first replica
  std::vector<TimelineSpan> spans;
};

LayoutDrawing draw_layout(const Plan& plan, const RankOrder& order,
                          std::vector<TimelineSpan> spans);

nlohmann::ordered_json json_of(const LayoutDrawing& drawing);
/// Seconds, tokens per second, MFU, exposed communication, stage groups.
nlohmann::ordered_json json_of(const StepTime& time);

/// Returns the text of `zea -n --json`.
std::string plan_json(const Plan& plan, const StepTime& time, const LayoutDrawing& drawing,
                      const Hardware& hardware);

}  // namespace zea
