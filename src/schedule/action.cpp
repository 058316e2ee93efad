// SPDX-License-Identifier: Apache-2.0
#include "schedule/action.hpp"

namespace zea {

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatBuffer>& buffers) {
  constexpr const char* kNames[] = {
      "unshard",       "unshard_subgroup", "reshard",        "reshard_subgroup",
      "forward",       "backward",         "backward_input", "backward_weight",
      "move",          "move_back",        "send",           "receive",
      "send_gradient", "receive_gradient", "reduce_shard",   "reduce_replicas"};
  const std::string& subject =
      action.unit >= 0 ? model.units[action.unit].name : buffers[action.buffer].name;
  return std::string(kNames[static_cast<int>(action.kind)]) + " " + subject + " microbatch " +
         std::to_string(action.microbatch);
}

}  // namespace zea
