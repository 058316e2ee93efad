// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/load_weights.hpp"

#include <map>
#include <set>

#include "held_boxes.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + ")";
}

/// Files may hold the head's matrix although it is the embedding's; the model then has no such
/// parameter.
std::set<std::string> tied_names(const ModelSpec& model) {
  const std::string embedding = "model.embed_tokens.weight";
  std::set<std::string> names;
  if (!model.text.tied_embeddings) return names;
  for (const ParamSpec& param : model.params)
    if (param.name.ends_with(embedding))
      names.insert(param.name.substr(0, param.name.size() - embedding.size()) + "lm_head.weight");
  return names;
}

std::string fault_of(const ParamSpec& param,
                     const std::map<std::string, const TensorInfo*>& found) {
  const auto entry = found.find(param.name);
  const std::string wanted = shape_text(param.shape);
  if (entry == found.end()) return "\n  missing: " + param.name + " " + wanted;
  const TensorInfo& tensor = *entry->second;
  if (tensor.shape != param.shape)
    return "\n  wrong shape: " + param.name + " is " + shape_text(tensor.shape) +
           "; the model wants " + wanted;
  if (!is_floating(tensor.dtype))
    return "\n  wrong type: " + param.name + " is " + dtype_name(tensor.dtype) +
           "; allowed: floating types";
  return "";
}

}  // namespace

void check_tensors(const ModelSpec& model, const WeightsSource& source) {
  std::map<std::string, const TensorInfo*> found;
  for (const TensorInfo& tensor : source.tensors()) found[tensor.name] = &tensor;
  std::string faults;
  std::set<std::string> known = tied_names(model);
  for (const ParamSpec& param : model.params) {
    faults += fault_of(param, found);
    known.insert(param.name);
  }
  for (const TensorInfo& tensor : source.tensors())
    if (!known.contains(tensor.name))
      faults += "\n  unexpected: " + tensor.name + " " + shape_text(tensor.shape);
  if (faults.empty()) return;
  throw WeightsError(source.describe() + ": its tensors are not those of this " + model.family +
                     " model; use weights that were made from the same config.json:" + faults);
}

void load_weights(Engine& engine, const WeightsSource& source) {
  const Plan& plan = engine.plan();
  check_tensors(plan.model, source);
  for (const auto& group : engine.groups()) {
    const auto boxes = detail::held_boxes(plan.model, group->layout(), group->range());
    detail::fill_boxes(
        group->master(), group->range(), boxes, [&](const detail::HeldBox& box, void* target) {
          const ParamSpec& param = plan.model.params[box.param];
          source.read(param.name, param.shape, box.extent, plan.precision.master, target);
        });
    group->publish();
  }
}

}  // namespace zea
