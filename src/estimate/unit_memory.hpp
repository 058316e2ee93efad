// SPDX-License-Identifier: Apache-2.0
// The memory of every unit: the bytes of its output, the bytes that its graph saves until backward,
// and the peaks of its forward and of its backward. A pure function of the model and of the numbers
// of tokens, targets and items of a microbatch; nothing here is measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/sample_index.hpp"
#include "spec/operation_needs.hpp"

namespace zea {

/// The items of an encoder in a microbatch.
struct EncoderSizes {
  int64_t items = 0, tokens = 0, features = 0;
  int64_t patches = 0;  ///< of images
  int64_t columns = 0;  ///< log-mel columns of clips
  int64_t beyond = 0;   ///< rows of the projector beyond features, of images that are resampled
  /// For each of BlockSpec::mixers.
  std::vector<std::vector<AttentionSizes>> attention = {};

  bool operator==(const EncoderSizes&) const = default;
};

/// The sizes that determine the memory of a microbatch.
struct MicrobatchSizes {
  int64_t samples = 0, tokens = 0, targets = 0;
  ItemList items;
  std::vector<AttentionSizes> text;
  std::vector<EncoderSizes> encoders;
  /// Tokens of all replicas that share experts with this one; 0: each has as many as this one.
  int64_t expert_tokens = 0;

  bool operator==(const MicrobatchSizes&) const = default;
};

/// The sizes of a microbatch of these samples.
MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples);

/// The same with other items.
MicrobatchSizes with_items(const ModelSpec& model, const MicrobatchSizes& sizes,
                           const ItemList& items);

/// Returns the share with the most tokens when the encoder's `items` are distributed over `takers`
/// ranks.
ItemList largest_share(const ModelSpec& model, const ItemList& items, int encoder, int takers);

/// How a unit is called.
struct UnitCall {
  bool keeps_graph = true;                 ///< false: evaluation, or it is to be recomputed
  std::vector<bool> inputs_need_gradient;  ///< of each input
  std::vector<bool> inputs_present;        ///< of each input; empty: all
  bool is_selective = false;               ///< as in UnitArguments (model/unit.hpp)
};

/// Memory of a unit beyond its inputs, which the engine keeps. The output and its gradient also
/// belong to the engine, so they are not in `saved_bytes` and `backward_peak_bytes`.
struct UnitMemory {
  int64_t output_bytes = 0;
  int64_t saved_bytes = 0;          ///< kept by the graph from forward to backward
  int64_t recomputed_bytes = 0;     ///< of tensors that backward recomputes, all of them
  int64_t forward_peak_bytes = 0;   ///< most held at once: the output and what is saved included
  int64_t backward_peak_bytes = 0;  ///< most held at once: what was saved and input gradients
                                    ///< included
  /// The parts of both peaks that a GEMM library may take, and need not take.
  int64_t forward_scratch_bytes = 0, backward_scratch_bytes = 0;
  std::vector<int64_t> input_gradient_bytes;  ///< of each input; 0: none
};

/// `sizes` are those of all ranks that share the unit's tokens.
UnitMemory unit_memory(const ModelSpec& model, const UnitSpec& unit, const MicrobatchSizes& sizes,
                       const UnitTypes& types, const UnitCall& call, const UnitShare& share = {});

/// Bytes of the tensors of a microbatch: ids, rotary tables, patches, log-mel columns, attention's
/// rows.
int64_t microbatch_bytes(const ModelSpec& model, const MicrobatchSizes& sizes,
                         const std::map<std::string, UnitTypes>& types_of_modules);

}  // namespace zea
