// SPDX-License-Identifier: Apache-2.0
// The element types of a module, and how they follow from a deck's precision sections.
#pragma once

#include <map>
#include <string>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "deck/options.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct Precision {
  DType param = DType::Float32;   ///< gathered parameters and the module's computation
  DType master = DType::Float32;  ///< masters and accumulated gradients, the same in all modules
  DType reduce = DType::Float32;  ///< gradients between ranks
  DType output = DType::Float32;  ///< the module's output to another: features

  /// Returns the type of a rank's own shard of a parameter: frozen ones have no master, but states
  /// and those that no unit reads are kept as exactly as a master.
  DType owned(bool trains, bool is_read) const { return trains || !is_read ? master : param; }
};

using Precisions = std::map<std::string, Precision>;  ///< of each module

}  // namespace zea

namespace zea::detail {

Precisions make_precisions(const Options& options, const ModelSpec& model);

/// Adds a fault for every type that the preset or the modules' types make impossible.
void check_precision(Faults& faults, const Options& options, const ModelSpec& model);

}  // namespace zea::detail
