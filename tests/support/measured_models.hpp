// SPDX-License-Identifier: Apache-2.0
// Models of every unit kind and option, small, but of widths at which tensors outweigh the
// library's other memory.
#pragma once

#include <string>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea::testing {

struct MeasuredModel {
  std::string name;
  std::string config;
  void (*remake)(ModelSpec&) = nullptr;  ///< of what no config can ask for here
};

const std::vector<MeasuredModel>& measured_models();
/// One of them. Throws std::out_of_range.
const MeasuredModel& measured_model(const std::string& name);

}  // namespace zea::testing
