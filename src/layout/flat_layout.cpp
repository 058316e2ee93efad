// SPDX-License-Identifier: Apache-2.0
#include "layout/flat_layout.hpp"

#include <algorithm>
#include <tuple>

#include "core/error.hpp"
#include "core/extent.hpp"

namespace zea {
namespace {

/// Units that read each parameter, in walking order.
std::vector<std::vector<int>> readers_of_params(const ModelSpec& model) {
  std::vector<std::vector<int>> readers(model.params.size());
  for (size_t u = 0; u < model.units.size(); ++u)
    for (int param : model.units[u].params) readers[param].push_back(static_cast<int>(u));
  return readers;
}

/// Whether another parameter is listed in its place: that of the first ep rank.
bool is_listed(const ParamShards& cuts, int param) {
  return cuts.empty() || cuts[param].home == 0;
}

int64_t piece_elements(const ModelSpec& model, const ParamShards& cuts, int param) {
  if (!is_listed(cuts, param)) return 0;
  return num_elements(cuts.empty() ? model.params[param].shape : cuts[param].shape);
}

WrapPolicy wrap_policy_of(const WrapPolicies& wrappings, const std::string& module) {
  const auto found = wrappings.find(module);
  return found == wrappings.end() ? WrapPolicy{} : found->second;
}

int64_t trained_elements(const ModelSpec& model, const ParamShards& cuts, const UnitSpec& unit) {
  int64_t elements = 0;
  for (int param : unit.params)
    if (model.params[param].trainable) elements += piece_elements(model, cuts, param);
  return elements;
}

constexpr const char *kExperts = ".experts", *kStates = ".states";  ///< follow the names of units

/// Opens a buffer when its first parameter comes.
class LayoutBuilder {
 public:
  LayoutBuilder(const ModelSpec& model, const WrapPolicies& wrappings, const ParamShards& cuts,
                const std::vector<int>& stage_of_unit)
      : model_(model),
        wrappings_(wrappings),
        cuts_(cuts),
        fsdp_units_(fsdp_units_of(model, wrappings, cuts, stage_of_unit)),
        readers_(readers_of_params(model)) {}

  void add_unit(int unit) {
    const UnitSpec& spec = model_.units[unit];
    const bool each = wrap_policy_of(wrappings_, spec.module).each_parameter;
    int run = -1;  // the first parameter of the fused run under way
    bool joined = false;
    for (int param : spec.params) {
      if (!joined) run = param;
      joined = model_.params[param].fused_with_next;
      if (!is_listed(cuts_, param)) continue;
      const bool shared = readers_[param].size() > 1;
      if (shared && readers_[param].front() != unit) continue;
      const int own = shared ? param : each ? run : -1;
      FlatBuffer& buffer = buffer_at(param, fsdp_units_[unit], own);
      if (buffer.params.empty()) open(buffer, unit, param, own, shared);
      if (!shared && buffer.units.back() != unit) extend(buffer, unit, own);
      append(buffer, param);
    }
  }

  /// Parameters that no unit reads, a buffer for each module.
  void add_carried() {
    std::map<std::string, FlatBuffer> carried;
    for (size_t p = 0; p < model_.params.size(); ++p) {
      if (!readers_[p].empty()) continue;
      FlatBuffer& buffer = carried[model_.params[p].module];
      buffer.module = model_.params[p].module;
      buffer.name = buffer.module + ".carried";
      buffer.trainable = false;
      append(buffer, static_cast<int>(p));
    }
    for (auto& [module, buffer] : carried) buffers_.push_back(std::move(buffer));
  }

  std::vector<FlatBuffer> finish() { return std::move(buffers_); }

 private:
  bool is_over_ep(int param) const { return !cuts_.empty() && cuts_[param].ep > 1; }
  FlatBuffer& buffer_at(int param, int fsdp_unit, int own) {
    const ParamSpec& spec = model_.params[param];
    const auto [place, is_new] = position_.emplace(
        std::make_tuple(fsdp_unit, spec.trainable, spec.is_state, is_over_ep(param), own),
        buffers_.size());
    if (is_new) buffers_.emplace_back();
    return buffers_[place->second];
  }
  static const char* ending_of(const FlatBuffer& buffer) {
    return buffer.is_over_ep ? kExperts : buffer.is_state ? kStates : "";
  }

  void append(FlatBuffer& buffer, int param) const {
    const bool fused =
        !buffer.params.empty() && is_fused_with(model_, buffer.params.back().param, param);
    const int64_t offset = fused ? buffer.elements : round_up(buffer.elements, kFlatAlignment);
    const int64_t elements = piece_elements(model_, cuts_, param);
    buffer.params.push_back({param, offset, elements});
    buffer.elements = offset + elements;
  }

  void open(FlatBuffer& buffer, int unit, int param, int own, bool shared) {
    buffer.is_over_ep = is_over_ep(param);
    buffer.is_state = model_.params[param].is_state;
    buffer.name =
        own >= 0 ? model_.params[param].name : model_.units[unit].name + ending_of(buffer);
    buffer.module = model_.units[unit].module;
    buffer.trainable = model_.params[param].trainable;
    buffer.fsdp_unit = shared ? -1 : fsdp_units_[unit];
    buffer.units = shared ? readers_[param] : std::vector<int>{unit};
  }

  void extend(FlatBuffer& buffer, int unit, int own) {
    buffer.units.push_back(unit);
    if (own < 0)
      buffer.name = model_.units[buffer.units.front()].name + ".." + model_.units[unit].name +
                    ending_of(buffer);
  }

  const ModelSpec& model_;
  const WrapPolicies& wrappings_;
  const ParamShards& cuts_;
  std::vector<int> fsdp_units_;
  std::vector<std::vector<int>> readers_;
  std::vector<FlatBuffer> buffers_;
  std::map<std::tuple<int, bool, bool, bool, int>, size_t> position_;
};

}  // namespace

bool is_fused_with(const ModelSpec& model, int param, int next) {
  return model.params[param].fused_with_next && next == param + 1;
}

int64_t FlatBuffer::padded(int shards) const {
  return round_up(elements, kFlatAlignment * shards);
}

FlatRange shard_range(const FlatBuffer& buffer, int shard, int shards) {
  const int64_t length = buffer.padded(shards) / shards;
  return {shard * length, (shard + 1) * length};
}

std::vector<FlatPart> parts_in_range(const FlatBuffer& buffer, FlatRange range) {
  std::vector<FlatPart> parts;
  for (const FlatParam& param : buffer.params) {
    const int64_t begin = std::max(range.begin, param.offset);
    const int64_t end = std::min(range.end, param.offset + param.elements);
    if (begin < end) parts.push_back({param.param, begin - param.offset, begin, end - begin});
  }
  return parts;
}

std::vector<int> fsdp_units_of(const ModelSpec& model, const WrapPolicies& wrappings,
                               const ParamShards& cuts, const std::vector<int>& stage_of_unit) {
  std::vector<int> fsdp_units;
  int fsdp_unit = -1;
  int64_t units = 0, elements = 0;  // of the FSDP unit under way; units without parameters are free
  for (size_t u = 0; u < model.units.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const WrapPolicy wrapping = wrap_policy_of(wrappings, unit.module);
    const bool counts = !unit.params.empty();
    const bool is_full = (wrapping.units > 0 && units >= wrapping.units) ||
                         (wrapping.bucket_elements > 0 && elements >= wrapping.bucket_elements);
    const bool is_other_stage =
        u > 0 && !stage_of_unit.empty() && stage_of_unit[u] != stage_of_unit[u - 1];
    if (u == 0 || unit.module != model.units[u - 1].module || is_other_stage ||
        (counts && is_full)) {
      ++fsdp_unit;
      units = elements = 0;
    }
    units += counts ? 1 : 0;
    elements += trained_elements(model, cuts, unit);
    fsdp_units.push_back(fsdp_unit);
  }
  return fsdp_units;
}

std::vector<FlatBuffer> make_flat_layout(const ModelSpec& model, const WrapPolicies& wrappings,
                                         const ParamShards& cuts,
                                         const std::vector<int>& stage_of_unit) {
  LayoutBuilder builder(model, wrappings, cuts, stage_of_unit);
  for (size_t u = 0; u < model.units.size(); ++u) builder.add_unit(static_cast<int>(u));
  builder.add_carried();
  return builder.finish();
}

std::vector<std::vector<int>> buffers_of_units(const ModelSpec& model,
                                               const std::vector<FlatBuffer>& buffers) {
  std::vector<std::vector<int>> of_units(model.units.size());
  for (size_t g = 0; g < buffers.size(); ++g)
    for (int unit : buffers[g].units) of_units[unit].push_back(static_cast<int>(g));
  return of_units;
}

}  // namespace zea
