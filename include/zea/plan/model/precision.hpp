// SPDX-License-Identifier: Apache-2.0
// The element types of a module.
#pragma once

#include <map>
#include <string>

#include "zea/core/dtype.hpp"

namespace zea {

struct Precision {
  DType param = DType::Float32;   ///< gathered parameters and the module's computation
  DType master = DType::Float32;  ///< sharded parameters and gradients; of all modules
  DType reduce = DType::Float32;  ///< gradients between ranks
  DType output = DType::Float32;  ///< what the module gives to another: features
};

using Precisions = std::map<std::string, Precision>;  ///< of each module

}  // namespace zea
