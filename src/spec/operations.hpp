// SPDX-License-Identifier: Apache-2.0
// A unit's forward as a list of operations. spec/unit_forward.cpp records the list once, when the
// model's spec is made. model/unit.cpp runs it on tensors; plans sum what each operation declares
// (spec/operation_needs.cpp).
#pragma once

#include <string>
#include <vector>

#include "spec/module_spec.hpp"

namespace zea {

struct ModelSpec;
struct UnitSpec;

enum class OperationKind {
  Input,    ///< the unit's input number `count`
  Patches,  ///< pixels of the microbatch, a row for each patch
  Columns,  ///< log-mel columns of the microbatch
  /// Embeddings of token ids; params: table; `count`: its rows for per-layer inputs, else 0
  Vocabulary,
  Positions,     ///< embeddings of positions; params: table, or none where it is computed
  Sinusoids,     ///< sinusoids of the positions of relative attention, a row for each distance
  Linear,        ///< params: weight, bias
  ColumnLinear,  ///< a linear whose outputs tp ranks share; params: weight, bias
  RowLinear,     ///< a linear whose inputs tp ranks share; params: weight, bias
  Activate,      ///< activation(x + bias), in place; params: bias
  Gate,          ///< activation(first half of the columns) times the second half
  ClampedGate,   ///< the gate of gpt-oss between neighboring columns (MlpSpec::clamped_gate)
  GatherRows,    ///< the rows of all tp ranks
  SumRows,       ///< the sum over tp ranks of x, of which each has the rows of all
  /// Gates of each token's experts, from a router's outputs; params: bias of the choice; others:
  /// the experts' indices
  Route,
  ScaleGates,  ///< gates of the experts with these indices, each times its element; params: scale
  /// Rows, gates and experts' indices of all ranks that share experts; others: these gates, indices
  GatherExpertRows,
  /// The sum over these ranks of x, of which each has the rows of all
  SumExpertRows,
  Dispatch,      ///< each row for each of its experts, by expert; others: where they went, ends
  ExpertLinear,  ///< a linear of each of `count` experts, for its rows; params: weight, bias
  Combine,       ///< the sum of a token's expert rows, each times its gate
  SigmoidScale,  ///< x times the sigmoid of y, which has one column or as many as x
  Add,           ///< x + y
  AddAdapted,    ///< adds y times an adapter's scale to the adapter's columns of x, in place
  AddBiases,     ///< adds biases to queries and values, in place; params: query, value
  Norm,          ///< params: weight, bias, each perhaps absent
  NormSum,       ///< the norm of x + y (x where y is absent); others: the sum; params: weight, bias
  SplitGates,    ///< queries, keys and values without gates behind queries; others: the gates
  KeysAsValues,  ///< queries and keys, and keys once more as values; queries may be absent
  SplitColumns,  ///< the first `count` columns; others: the rest
  /// Queries, keys and values of equal heads (LatentSpec), of which the first coordinates rotate;
  /// inputs: queries, keys and values, the keys' coordinates that rotate
  LatentHeads,
  ValueColumns,  ///< of each head the coordinates of values
  /// Norms of queries and keys, perhaps of values; params: query, key; a unit that makes only
  /// queries or only keys has the same one twice
  HeadNorms,
  Rotary,  ///< rotary positions of queries and keys, in place
  /// params: sinks, the linear of keys and values from latents; inputs: qkv, latents
  Attention,
  /// Attention with relative positions; inputs: qkv, keys of the distances; params: of each
  /// coordinate of queries, whose softplus is a factor
  RelativeAttention,
  CausalConvolution,  ///< of each column of a sample's or clip's rows; params: weight
  /// The gated delta rule of the in-projection's outputs: convolution, recurrence, norm and gate;
  /// params: convolution, A_log, dt_bias, norm
  DeltaRule,
  Clamp,        ///< x clamped between two bounds; params: least, most; none: `factor` both ways
  LayerScale,   ///< each column times an element, or all times one; params: scale
  Scale,        ///< x times `factor`
  Standardize,  ///< (`factor` x - shift) scale; params: shift, scale
  Dropout,      ///< x without a share `factor` of its elements, while training
  Windows,  ///< a convolution's windows: the rows that each of its outputs reads; `count`: index
  ImageTokens,   ///< patches and learned tokens; params: class token, positions, registers
  Features,      ///< of all inputs, the rows that become features
  SideBySide,    ///< `count` neighboring rows as one
  SpaceToDepth,  ///< the same, ordered by channel
  Mean,          ///< the mean of `count` neighboring rows
  FrameMeans,    ///< the mean over frames of each patch of a feature; `count`: its patches
  Resample,      ///< features interpolated from projected rows
  RowEnds,       ///< a learned row in place of each feature that ends a row; params: row
  Merge,         ///< x with the features of every other input that is present at its placeholders
  /// x plus the features of the other present inputs at their placeholders; `count`: the unit's
  /// inputs between its first one and the features
  AddFeatures,
  NextRows,    ///< of each token the row of the next one in its sample; of the last its own
  Concat,      ///< the columns of x, then the columns of y
  TargetRows,  ///< rows whose next token is a target; `count` 1: the token after the next
  /// Cross entropy, or logits, of the vocabulary; `count` 1: `factor` times the cross entropy of
  /// tokens after the next, added to the loss y; params: table
  Loss,
};

/// The rows of its module that a linear reads.
enum class UnitRows { Tokens, Features };

struct Operation {
  OperationKind kind;
  std::vector<int> inputs = {};  ///< values that it reads; -1: absent
  std::vector<int> params = {};  ///< indices in UnitSpec::roles; -1: the unit has none
  UnitRows rows = UnitRows::Tokens;
  WeightOrder order = WeightOrder::OutIn;
  Activation activation = Activation::Gelu;
  NormSpec norm = {};
  int adapter = -1;  ///< index in UnitSpec::adapters
  /// Index in UnitSpec::roles of a parameter that is not read: its shape says how many heads are
  /// here, or its name seeds the mask of a dropout.
  int known_by = -1;
  std::string seed = {};  ///< seeds the mask of a dropout that no parameter does
  int64_t count = 0;      ///< see OperationKind
  double factor = 1;
  bool reads_columns = false;     ///< Dropout, ExpertLinear: x is what a row linear reads
  bool has_wide_outputs = false;  ///< Linear: in bf16 its outputs are fp32
  int output = -1;                ///< the value that it makes
  std::vector<int> others = {};   ///< further values that it makes, see OperationKind
  std::vector<int> dropped = {};  ///< values that nothing reads from this operation on
};

struct UnitGraph {
  std::vector<Operation> operations;
  int values = 0;   ///< how many values the operations make
  int output = -1;  ///< the value that the unit returns
};

/// Records the forward of `unit`. Throws InternalError where the forward reads a parameter that the
/// unit does not have, or leaves one unread: the family that made the unit is at fault.
UnitGraph record_graph(const ModelSpec& model, const UnitSpec& unit);

/// Records the graph of every unit; to be called again after a block, a projector or roles changed.
void record_graphs(ModelSpec& model);

/// Returns for each parameter whether it is the weight of a linear.
std::vector<bool> linear_weights(const ModelSpec& model);

}  // namespace zea
