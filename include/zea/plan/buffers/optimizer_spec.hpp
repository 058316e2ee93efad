// SPDX-License-Identifier: Apache-2.0
// What an optimizer is before there are tensors: its name, the state that it keeps beside each
// master, and the keys of [optim] that not every optimizer reads. What it does: optim/update.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "zea/core/dtype.hpp"
#include "zea/deck/options.hpp"

namespace zea {

/// An element beside each element of a trained master.
struct StateSpec {
  std::string name;  ///< torch's, and that in files
  /// Where it is not the masters' type; files hold it in this, too.
  std::optional<DType> dtype = {};

  DType type(DType master) const { return dtype.value_or(master); }
};

struct OptimizerSpec {
  std::string name;  ///< as in optim.kind
  std::vector<StateSpec> states;
  std::vector<std::string> keys;  ///< of [optim], that not every optimizer reads

  /// Beside one element of a master.
  int64_t state_bytes(DType master) const;
  /// Why it cannot go on from what a file names beside a trained parameter (ascending), and what to
  /// do; empty where it can.
  std::string why_not_from(const std::vector<std::string>& states) const;
};

/// All that there are.
const std::vector<OptimizerSpec>& optimizers();

/// That of optim.kind. A key that is set and that it does not read is a fault.
OptimizerSpec make_optimizer_spec(const OptimOptions& optim, std::vector<std::string>& faults);

}  // namespace zea
