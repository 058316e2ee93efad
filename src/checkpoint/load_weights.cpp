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
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    ShardedBuffer* buffer = engine.buffers()[g].get();
    if (buffer == nullptr) continue;
    if (plan.options.model.sync_module_states && !buffer->is_first_replica()) continue;
    const auto boxes =
        detail::held_boxes(plan, static_cast<int>(g), engine.world_rank(), buffer->range());
    ActionRecord& record = engine.mesh().record();
    const ActionRecord::Action action(record, "read weights");
    detail::fill_boxes(
        buffer->master(), buffer->range(), boxes, [&](const detail::HeldBox& box, void* target) {
          const ParamSpec& param = plan.model.params[box.param];
          source.read(param.name, param.shape, box.extent, plan.precision.master, target);
          record.moved();  // which may take long: slow is not hung
        });
    buffer->publish();
  }
}

}  // namespace zea
