// SPDX-License-Identifier: Apache-2.0
// What every unit declares of its memory: the bytes of its output, what its graph keeps until the
// backward, and the most that its forward and its backward hold at once. A pure function of the
// model and of how many tokens, targets and items a microbatch has; nothing here is measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/kernel_sizes.hpp"
#include "estimate/microbatch_sizes.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Element types that a unit computes with, and on what.
struct UnitTypes {
  DType param = DType::Float32;     ///< parameters and activations
  DType gradient = DType::Float32;  ///< the buffers that parameters' gradients are added into
  NarrowProducts products = NarrowProducts::Library;  ///< of the host
  bool on_device = false;                             ///< not on the host
  /// The most that all threads of the library take in blocks while it multiplies bf16 or fp32.
  int64_t library_block_bytes = kLibraryBlockBytes;
};

/// The part of its module's tokens and parameters that a rank has: 1/cp of the tokens (about: the
/// distribution may deal more to one), between layers 1/tp of these under sequence parallel.
struct UnitShare {
  int tp = 1;
  bool sequence_parallel = false;
  int cp = 1;
  int cp_inner = 1;          ///< ranks that exchange tokens for heads in attention
  bool gathers_keys = true;  ///< of all of them at once; false: one group's after the other's
};

/// How a unit is called.
struct UnitCall {
  bool keeps_graph = true;                 ///< false: evaluation, or it is to be computed again
  std::vector<bool> inputs_need_gradient;  ///< of each input
  std::vector<bool> inputs_present;        ///< of each input; empty: all
};

/// Beyond the inputs, which the engine keeps. The output and its gradient are the engine's too, so
/// they are not in `saved_bytes` and `backward_peak_bytes`.
struct UnitMemory {
  int64_t output_bytes = 0;
  int64_t saved_bytes = 0;          ///< kept by the graph from forward to backward
  int64_t forward_peak_bytes = 0;   ///< most held at once: the output and what is saved included
  int64_t backward_peak_bytes = 0;  ///< most held at once: what was saved and input gradients
                                    ///< included
  std::vector<int64_t> input_gradient_bytes;  ///< of each input; 0: none
};

/// `sizes` are those of all ranks that share the unit's tokens.
UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call, const UnitShare& share = {});

/// Bytes of the tensors that a microbatch brings along: ids, rotary tables, patches, log-mel
/// columns, attention's rows.
int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const std::map<std::string, UnitTypes>& types_of_modules);

}  // namespace zea
