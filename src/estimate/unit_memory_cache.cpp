// SPDX-License-Identifier: Apache-2.0
#include "estimate/unit_memory_cache.hpp"

#include <string>

namespace zea {
namespace {

/// A unit's kernels with their rows, as text: units with the same text take equally long.
std::string signature(const ModelSpec& model, int unit, const std::vector<bool>& gradients) {
  const UnitSpec& spec = model.units[static_cast<size_t>(unit)];
  std::string text = spec.module + " " + std::to_string(static_cast<int>(spec.kind)) + " " +
                     std::to_string(spec.mixer) + " " + std::to_string(spec.mlp) + " " +
                     std::to_string(spec.graph.operations.size());
  for (const int param : spec.params) {
    text += model.params[param].trainable ? " t" : " f";
    for (const int64_t size : model.params[param].shape) text += "," + std::to_string(size);
  }
  for (const UnitInput& input : spec.inputs)
    text += gradients[static_cast<size_t>(input.unit)] ? " g" : " -";
  return text;
}

}  // namespace

std::vector<int> unit_classes(const ModelSpec& model) {
  const std::vector<bool> gradients = model.units_with_gradient();
  std::map<std::string, int> numbers;
  std::vector<int> classes;
  for (size_t u = 0; u < model.units.size(); ++u)
    classes.push_back(numbers
                          .emplace(signature(model, static_cast<int>(u), gradients),
                                   static_cast<int>(numbers.size()))
                          .first->second);
  return classes;
}

}  // namespace zea
