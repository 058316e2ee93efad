// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/load_weights.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/frozen_values.hpp"
#include "checkpoint/held_boxes.hpp"
#include "comm/agree.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "io/model_source.hpp"

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

/// Says why a file's state is not in the blocks of this mesh; empty where it is.
std::string why_not_in_blocks(const ParamSpec& param, const StateSpec& state, int64_t block,
                              const StateSource& source) {
  const int64_t each = state.elements_of_each(block);
  if (each == 0) return "";
  const TensorInfo held = source.state_info(param.name, state.name);
  if (held.shape == in_blocks(param.tensor_shape(), each)) return "";
  const TensorInfo tensor{param.name, param.tensor_shape(), held.dtype};
  return param.name + " has a scale of " + state.name + " for each " +
         std::to_string(elements_of_each(tensor, held)) + " elements of a row, on this mesh for " +
         std::to_string(each) +
         ", as tp leaves no more of its rows whole; go on with a tp that cuts them as the run did "
         "that wrote it, or start a new run with these weights as model.weights";
}

/// Another optimizer's state is no damage: an older checkpoint of the run has it, too.
void check_same_optimizer(const Plan& plan, const StateSource& source) {
  for (size_t p = 0; p < plan.model.params.size(); ++p) {
    const ParamSpec& param = plan.model.params[p];
    const int64_t block = plan.param_rules[p].state_block;
    const std::vector<std::string> states = source.states(param.name);
    if (states.empty()) continue;
    std::string why = plan.optimizer.why_not_from(states, block);
    for (const StateSpec& state : plan.optimizer.states)
      if (why.empty()) why = why_not_in_blocks(param, state, block, source);
    if (!why.empty()) throw PlanError(source.describe() + ": " + why);
  }
}

void read_states(Engine& engine, const ShardedBuffer& buffer, const StateSource& source,
                 int cores) {
  const Plan& plan = engine.plan();
  auto boxes = detail::held_boxes(plan, buffer.index(), engine.world_rank(), buffer.range());
  std::erase_if(boxes, [&](const detail::HeldBox& box) {
    return source.states(plan.model.params[box.param].name).empty();
  });
  ActionRecord& record = engine.mesh().record();
  const ActionRecord::Action action(record, "read optimizer state");
  for (const StateSpec& state : plan.optimizer.states) {
    const at::Tensor& kept = engine.state(buffer, state.name);
    detail::fill_boxes(
        kept, {0, kept.numel()},
        detail::state_boxes(plan, buffer.index(), buffer.range(), state, boxes), cores,
        [&](const detail::HeldBox& box, void* target) {
          const ParamSpec& param = plan.model.params[box.param];
          const int64_t each = state.elements_of_each(plan.param_rules[box.param].state_block);
          source.read_state(param.name, state.name, in_blocks(param.tensor_shape(), each),
                            box.extent, state.type(plan.precision.master), target);
          record.moved();
        });
  }
}

}  // namespace

void check_tensors(const ModelSpec& model, const WeightsSource& source) {
  check_head_that_trains(model, source);
  check_match(match_tensors(model, source), model, source);
}

std::string describe_rounded(const Plan& plan, const WeightsSource& source) {
  const detail::FrozenOrigin origin(plan, source);
  std::map<std::string, std::string> types;  // of each module: given and held
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    const DType held = plan.owned_type(static_cast<int>(g));
    if (plan.buffers[g].trainable) continue;
    for (const FlatParam& member : plan.buffers[g].params) {
      const DType given = origin.type_of(plan.model.params[member.param].name, held);
      if (!detail::keeps_values(given, held))
        types[plan.buffers[g].module] =
            std::string(dtype_name(given)) + " held as " + dtype_name(held);
    }
  }
  std::string text;
  for (const auto& [module, type] : types)
    text += (text.empty() ? source.describe() + ": frozen parameters of " : "; of ") + module +
            ", " + type + " (precision." + module + ".param_dtype = \"fp32\" keeps them)";
  if (text.empty()) return text;
  return text +
         "; checkpoints have them as they are there, for which the first one reads them "
         "again: leave it in place until then";
}

void read_frozen(const Plan& plan, const WeightsSource& source, const std::string& name,
                 const Shape& shape, const Extent& extent, DType held, void* target) {
  const DType kept = detail::FrozenOrigin(plan, source).type_of(name, held);
  // Also if `kept` is the file's type: adapters merged into it are finer.
  if (kept == held) return source.read(name, shape, extent, held, target);
  std::vector<char> values(static_cast<size_t>(extent.elements()) * element_bytes(kept));
  source.read(name, shape, extent, kept, values.data());
  convert_elements(kept, values.data(), held, target, extent.elements());
}

void load_weights(Engine& engine, const WeightsSource& source, int cores) {
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
    const auto read = [&](const detail::HeldBox& box, void* target) {
      const ParamSpec& param = plan.model.params[box.param];
      const DType held = plan.owned_type(static_cast<int>(g));
      if (buffer->trainable())
        source.read(param.name, param.tensor_shape(), box.extent, held, target);
      else
        read_frozen(plan, source, param.name, param.tensor_shape(), box.extent, held, target);
      record.moved();  // slow is not hung
    };
    detail::fill_boxes(buffer->master(), buffer->range(), boxes, cores, read);
    buffer->publish();
  }
}

TrainPosition read_checkpoint(Engine& engine, Collectives& control, const StateSource& source,
                              int cores) {
  check_same_on_all(control, source);
  const bool trains = engine.plan().options.run.mode == RunMode::Train;
  agree(control, [&] {
    if (trains) check_same_optimizer(engine.plan(), source);
    load_weights(engine, source, cores);
    for (const auto& buffer : engine.buffers())
      if (trains && buffer && buffer->trainable()) read_states(engine, *buffer, source, cores);
  });
  if (engine.plan().options.model.sync_module_states) engine.broadcast_weights();
  return source.position();
}

}  // namespace zea
