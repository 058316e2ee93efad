// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/flat_layout.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "zea/core/error.hpp"

namespace zea {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Units that read each parameter, in walking order.
std::vector<std::vector<int>> readers_of_params(const ModelSpec& model) {
  std::vector<std::vector<int>> readers(model.params.size());
  for (size_t u = 0; u < model.units.size(); ++u)
    for (int param : model.units[u].params) readers[param].push_back(static_cast<int>(u));
  return readers;
}

void append(FlatGroup& group, const ModelSpec& model, int param) {
  const bool fused =
      !group.params.empty() && model.params[group.params.back().param].fused_with_next;
  const int64_t offset = fused ? group.elements : round_up(group.elements, kFlatAlignment);
  const int64_t elements = num_elements(model.params[param].shape);
  group.params.push_back({param, offset, elements});
  group.elements = offset + elements;
}

}  // namespace

int64_t FlatGroup::padded(int shards) const {
  return round_up(elements, kFlatAlignment * shards);
}

FlatRange shard_range(const FlatGroup& group, int shard, int shards) {
  const int64_t length = group.padded(shards) / shards;
  return {shard * length, (shard + 1) * length};
}

std::vector<FlatPart> parts_in_range(const FlatGroup& group, FlatRange range) {
  std::vector<FlatPart> parts;
  for (const FlatParam& param : group.params) {
    const int64_t begin = std::max(range.begin, param.offset);
    const int64_t end = std::min(range.end, param.offset + param.elements);
    if (begin < end) parts.push_back({param.param, begin - param.offset, begin, end - begin});
  }
  return parts;
}

std::vector<FlatGroup> make_flat_layout(const ModelSpec& model) {
  const auto readers = readers_of_params(model);
  std::vector<FlatGroup> groups;
  // Keyed by unit and trainability; a shared parameter has its own key, beyond those of units.
  std::map<std::tuple<int, bool, int>, size_t> position;
  for (size_t u = 0; u < model.units.size(); ++u)
    for (int param : model.units[u].params) {
      const bool shared = readers[param].size() > 1;
      if (shared && readers[param].front() != static_cast<int>(u)) continue;
      const bool trainable = model.params[param].trainable;
      const auto key = std::make_tuple(static_cast<int>(u), trainable, shared ? param : -1);
      if (!position.contains(key)) {
        position[key] = groups.size();
        FlatGroup group;
        group.name = shared ? model.params[param].name : model.units[u].name;
        group.module = model.units[u].module;
        group.trainable = trainable;
        group.units = readers[param];
        groups.push_back(std::move(group));
      }
      append(groups[position[key]], model, param);
    }
  std::map<std::string, FlatGroup> carried;
  for (size_t p = 0; p < model.params.size(); ++p)
    if (readers[p].empty()) {
      const std::string module = model.params[p].module;
      FlatGroup& group = carried[module];
      group.name = module + ".carried";
      group.module = module;
      group.trainable = false;
      append(group, model, static_cast<int>(p));
    }
  for (auto& [module, group] : carried) groups.push_back(std::move(group));
  return groups;
}

std::vector<std::vector<int>> groups_of_units(const ModelSpec& model,
                                              const std::vector<FlatGroup>& groups) {
  std::vector<std::vector<int>> of_units(model.units.size());
  for (size_t g = 0; g < groups.size(); ++g)
    for (int unit : groups[g].units) of_units[unit].push_back(static_cast<int>(g));
  return of_units;
}

}  // namespace zea
