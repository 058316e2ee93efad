// SPDX-License-Identifier: Apache-2.0
// An optimizer before there are tensors: its kind, the state that it keeps beside each
// master, and the keys of [optim] that not every optimizer reads. What it does: optim/update.hpp.
// States of 8 bits are codes and a scale for each block of a row (arXiv:2110.02861).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "deck/options.hpp"
#include "layout/flat_layout.hpp"
#include "spec/param_rules.hpp"

namespace zea {

/// Beside which parameters a state is kept, and how much of it.
enum class StateOf {
  All,     ///< an element beside each element of the master
  Wide,    ///< the same, of parameters whose states are not in blocks
  Codes,   ///< the same, of those whose states are
  Scales,  ///< an element for each of their blocks
};

/// The states of trained masters.
struct StateSpec {
  std::string name;  ///< torch's, and that in files
  /// Where it is not the masters' type; files hold it in this, too.
  std::optional<DType> dtype = {};
  StateOf of = StateOf::All;

  /// Elements of a parameter in blocks of `block` (0: in none) that have one of the state; 0: the
  /// parameter has none of it.
  int64_t elements_of_each(int64_t block) const;
  DType type(DType master) const { return dtype.value_or(master); }
};

struct OptimizerSpec {
  Choice<OptimizerKind> kind = OptimizerKind::Adamw;
  std::vector<StateSpec> states;
  std::vector<std::string> keys;  ///< of [optim], that not every optimizer reads
  bool reads_factor = false;      ///< of clipping on the device, where the sums of a step made it

  /// Whether states of large matrices are in blocks.
  bool has_blocks() const;
  /// Beside so many elements of a parameter in blocks of `block`.
  int64_t state_bytes(DType master, int64_t elements, int64_t block) const;
  /// Why it cannot go on from what a file names beside a trained parameter (ascending) in blocks of
  /// `block`, and what to do; empty where it can.
  std::string why_not_from(const std::vector<std::string>& states, int64_t block) const;
};

/// Elements of a row of this parameter that share a scale of 8-bit states: a power of two, of which
/// the rows of the piece that a tp rank holds have whole ones, and up to 8 ranks those of as many
/// as one rank. 0: its states are wide, as those of vectors and of tensors of less than 4096
/// elements.
int64_t state_block(const ParamSpec& param, const ParamShard& cut);

/// How many a rank keeps of a state beside `range` of a buffer; in the order of the buffer.
int64_t state_elements(const StateSpec& state, const FlatBuffer& buffer,
                       const std::vector<ParamRule>& rules, FlatRange range);

/// Bytes of all states beside `range` of a buffer.
int64_t state_bytes(const OptimizerSpec& optimizer, const FlatBuffer& buffer,
                    const std::vector<ParamRule>& rules, FlatRange range, DType master);

/// All that there are.
const std::vector<OptimizerSpec>& optimizers();

/// Returns the optimizer of optim.kind. A key that is set and that it does not read is a fault.
OptimizerSpec make_optimizer_spec(const OptimOptions& optim, std::vector<std::string>& faults);

}  // namespace zea
