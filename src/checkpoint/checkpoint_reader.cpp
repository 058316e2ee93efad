// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/checkpoint_reader.hpp"

#include <functional>
#include <string>

#include "held_boxes.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

/// Ranks that fall back to an older checkpoint on their own would mix two of them.
void check_same_on_all(Collectives& control, const StateSource& source) {
  const auto run = static_cast<int64_t>(std::hash<std::string>{}(source.run_id()) >> 1);
  const int64_t step = source.position().step;
  int64_t largest[4] = {run, -run, step, -step};
  control.all_reduce(largest, 4, DType::Int64, ReduceOp::Max).wait();
  if (largest[0] != -largest[1] || largest[2] != -largest[3])
    throw WeightsError(
        source.describe() +
        ": the ranks opened different checkpoints; name one that all of them can read");
}

void read_moments(Engine& engine, int group_index, const StateSource& source) {
  const Plan& plan = engine.plan();
  const ShardedGroup& group = *engine.groups()[group_index];
  auto boxes = detail::held_boxes(plan, group_index, engine.world_rank(), group.range());
  std::erase_if(boxes, [&](const detail::HeldBox& box) {
    return source.states(plan.model.params[box.param].name).empty();
  });
  ActionRecord& record = engine.mesh().record();
  const ActionRecord::Action action(record, "read moments");
  const auto read_state = [&](const at::Tensor& values, const char* state) {
    detail::fill_boxes(values, group.range(), boxes, [&](const detail::HeldBox& box, void* target) {
      const ParamSpec& param = plan.model.params[box.param];
      source.read_state(param.name, state, param.shape, box.extent, plan.precision.master, target);
      record.moved();
    });
  };
  read_state(group.exp_avg(), kStateExpAvg);
  read_state(group.exp_avg_sq(), kStateExpAvgSq);
}

}  // namespace

TrainPosition read_checkpoint(Engine& engine, Collectives& control, const StateSource& source) {
  check_same_on_all(control, source);
  agree(control, [&] {
    load_weights(engine, source);
    for (size_t g = 0; g < engine.groups().size(); ++g)
      if (engine.groups()[g] && engine.groups()[g]->trainable())
        read_moments(engine, static_cast<int>(g), source);
  });
  if (engine.plan().options.model.sync_module_states) engine.broadcast_weights();
  return source.position();
}

}  // namespace zea
