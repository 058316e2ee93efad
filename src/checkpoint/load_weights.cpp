// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/load_weights.hpp"

#include "held_boxes.hpp"
#include "zea/io/model_source.hpp"

namespace zea {

void check_tensors(const ModelSpec& model, const WeightsSource& source) {
  check_match(match_tensors(model, source), model, source);
}

void load_weights(Engine& engine, const WeightsSource& source) {
  const Plan& plan = engine.plan();
  check_tensors(plan.model, source);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    ShardedGroup* group = engine.groups()[g].get();
    if (group == nullptr) continue;
    if (plan.options.model.sync_module_states && !group->is_first_replica()) continue;
    const auto boxes =
        detail::held_boxes(plan, static_cast<int>(g), engine.world_rank(), group->range());
    ActionRecord& record = engine.mesh().record();
    const ActionRecord::Action action(record, "read weights");
    detail::fill_boxes(
        group->master(), group->range(), boxes, [&](const detail::HeldBox& box, void* target) {
          const ParamSpec& param = plan.model.params[box.param];
          source.read(param.name, param.shape, box.extent, plan.precision.master, target);
          record.moved();  // which may take long: slow is not hung
        });
    group->publish();
  }
}

}  // namespace zea
