// SPDX-License-Identifier: Apache-2.0
// The declaration of every operation: the work of its GEMMs, the elements that it copies or scales,
// the bytes of its tensors, and what ranks send each other for it. Costs, FLOPs, memory and traffic
// are sums over a unit's operations. A new operation needs an enumerator (spec/operations.hpp), a
// case here, and a case of the same name in model/unit.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.hpp"
#include "core/kernel_sizes.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Element types that a unit computes with, and where it computes.
struct UnitTypes {
  DType param = DType::Float32;     ///< parameters and activations
  DType gradient = DType::Float32;  ///< the buffers that parameters' gradients are added into
  bool on_device = false;
  int64_t threads = 1;  ///< of the host's GEMM library
};

/// One batched attention call: `segments` segments padded to `length` hold `tokens` tokens.
struct AttentionSizes {
  int64_t segments = 0, length = 0, tokens = 0;

  int64_t padded_tokens() const { return segments * length; }
  bool padded() const { return padded_tokens() != tokens; }
  bool operator==(const AttentionSizes&) const = default;
};

/// The part of its module's tokens and parameters that a rank has: 1/cp of the tokens (about: the
/// distribution may give one rank more), between layers 1/tp of these under sequence parallel.
struct UnitShare {
  int tp = 1;
  RowChunks tp_chunks = {};
  bool sequence_parallel = false;
  int cp = 1;
  int cp_inner = 1;            ///< ranks that exchange tokens for heads in attention
  bool gathers_kv = true;      ///< of all of them at once; false: one group's after the other's
  bool passes_states = false;  ///< scans pass states between cp ranks
  bool owns_runs = true;       ///< cp ranks own the runs of tokens that they then scan
  bool scans_prompts = false;  ///< generation also scans prompts, without passing states
  int ep = 1;                  ///< ranks that share experts
  int ep_cp = 1;               ///< those of the ep ranks along cp
  int ep_tp = 1;               ///< those along tp: 1, or tp
  bool ep_exchanges = false;   ///< tokens go only to the ranks of their experts
};

namespace detail {

/// The memory that one differentiable function declares. A peak that is left at 0 is no more than
/// what stays afterwards.
struct FunctionMemory {
  int64_t output = 0;
  int64_t saved = 0;             ///< tensors of its own that the graph keeps
  bool saves_input = false;      ///< the graph keeps its first input
  bool saves_output = false;     ///< the graph keeps its output
  bool passes_gradient = false;  ///< gradients of inputs of its size are its output's, not copied
  bool changes_input = false;    ///< the output is the first input, whose gradient is the output's
  int64_t forward_peak = 0;      ///< beyond its inputs; output and saved included
  int64_t backward_working = 0;  ///< temporaries beyond what was saved and all gradients of tensors
  int64_t gradient_working = 0;  ///< the same, only while its inputs' gradients are made
  int64_t scratch = 0;  ///< the part of a peak that a GEMM library may take, and need not take
};

/// Bytes per element of activations, of the type that sums are taken in, of gradient buffers.
struct ElementBytes {
  explicit ElementBytes(const UnitTypes& types);

  int64_t param, wide, gradient;
  bool on_device;
  int64_t threads;
  bool is_narrow() const { return param != wide; }  ///< bf16: sums need a wide copy
};

/// The scratch of a product of (m, k) and (k, n):
///
///   device      0: cuBLAS keeps a workspace from its first product on, which is no tensor
///   host, fp64  0
///   host, fp32  blocks of operands and result (oneDNN), at most 2 MiB a thread
///   host, bf16  the result in fp32, or packed operands if these are larger
///
/// Which library multiplies, and how much of this it takes, depends on the processor; plans count
/// the most, so that a plan is the same on every processor.
int64_t gemm_scratch(int64_t m, int64_t k, int64_t n, const ElementBytes& bytes);

/// A weight's matrix, or a vector, on one rank.
struct WeightSpec {
  int64_t out = 0, in = 0;
  bool trains = false;
};

/// The rows that all tp ranks hold together, and the rows that this rank holds. Rows that travel
/// are filled up to equally many of each rank.
struct RowCounts {
  int64_t all = 0, here = 0, travelling = 0;

  static RowCounts whole(int64_t rows) { return {rows, rows, rows}; }
  bool are_sharded() const { return all != here; }
};

/// A linear of all rows; a column-parallel one, which gathers its rows; a row-parallel one, which
/// reduce-scatters its results. `bias_trains`: the linear's own bias does. `in_chunks`: rows are
/// gathered in chunks, and backward copies its input in the order of the chunks.
FunctionMemory linear_memory(int64_t rows, const WeightSpec& weight, bool bias_trains,
                             const ElementBytes& bytes);
FunctionMemory column_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                    bool bias_trains, const ElementBytes& bytes);
FunctionMemory row_linear_memory(const RowCounts& rows, const WeightSpec& weight, bool bias_trains,
                                 const ElementBytes& bytes, bool in_chunks);
/// Sums over rows, as the gradients of biases and norms are made.
int64_t sums_bytes(int64_t rows, int64_t columns, const ElementBytes& bytes);
/// Norms of all queries and of all keys, of which this tp rank has `width` elements each.
FunctionMemory joint_norms_memory(int64_t rows, int64_t width, bool trains,
                                  const ElementBytes& bytes);

/// The mean of `count` neighboring rows of `x_bytes`.
FunctionMemory mean_memory(int64_t x_bytes, int64_t count, const ElementBytes& bytes);
/// Rows (rows, width) that are concatenated from parts, and a gradient of `before` rows likewise.
FunctionMemory joined_memory(int64_t rows, int64_t width, int64_t before,
                             const ElementBytes& bytes);
FunctionMemory standardized_memory(int64_t x_bytes, const ElementBytes& bytes);

/// The experts that a rank has, and of how many of them a token can have rows.
struct LocalExperts {
  int64_t count, copies;
};

/// The choice of experts for `rows` rows; the linears of experts, of which each has the weight
/// `expert`, for `rows` rows of all of them.
FunctionMemory route_memory(int64_t rows, const RouterSpec& router, const ElementBytes& bytes);
FunctionMemory expert_linear_memory(int64_t rows, const WeightSpec& expert,
                                    const LocalExperts& experts, const ElementBytes& bytes);

/// Attention of all tokens here by the host's kernels, which beside these tensors have tiles.
FunctionMemory attention_memory(int64_t rows, const HeadShape& heads, const ElementBytes& bytes);
/// Attention by a device's flash kernels, which take rows of segments.
FunctionMemory ragged_attention_memory(int64_t rows, int64_t segments, const HeadShape& heads,
                                       const ElementBytes& bytes);
/// Attention of `tokens` of this rank where others hold the rest of the row.
struct ContextSizes {
  int64_t tokens;        ///< of this rank
  int64_t group_tokens;  ///< of the ranks that exchange tokens for heads
  int64_t key_tokens;    ///< whose keys are here at once; 0: no keys travel
  bool passes_keys;      ///< from rank to rank, not gathered
};
FunctionMemory context_attention_memory(const ContextSizes& context, const HeadShape& heads,
                                        const ElementBytes& bytes);
/// Attention of all tokens here, each of which sees a window, by the library slice by slice.
FunctionMemory window_attention_memory(int64_t rows, int64_t window, const HeadShape& heads,
                                       const ElementBytes& bytes);
/// Attention of a unit's tokens, all of which are here, by the kernel that takes them.
FunctionMemory attention_here_memory(const ModelSpec& model, const UnitSpec& unit,
                                     const std::vector<AttentionSizes>& batches, int64_t rows,
                                     const HeadShape& heads, const ElementBytes& bytes);
/// `keeps`: forward keeps the logits for backward, if they are few. `caps`: logits are capped.
FunctionMemory cross_entropy_memory(int64_t rows, const WeightSpec& vocabulary, bool keeps,
                                    bool caps, const ElementBytes& bytes);

/// The rows of a unit on a rank.
struct UnitSizes {
  RowCounts tokens;
  RowCounts projected;  ///< rows of the projector's linears
  RowCounts features;
  RowCounts targets;
  int64_t patches = 0;
  int64_t all_tokens = 0;         ///< on all cp ranks together
  int64_t expert_tokens = 0;      ///< on all ranks that share experts; 0: as many on each as here
  std::vector<int64_t> inputs{};  ///< of each input; empty: as many as tokens
  bool resamples = false;         ///< projected rows are more than features
  std::vector<AttentionSizes> attention{};

  /// Rows that are all here; as many of them are targets.
  static UnitSizes whole(int64_t tokens, int64_t projected, int64_t features, int64_t patches);
};

/// A gated delta rule of `rows` rows on this tp rank. Under cp each rank scans all tokens of the
/// row with a part of the heads, or a run of them with all heads if states pass.
FunctionMemory scan_memory(const DeltaRuleSpec& rule, const UnitSizes& sizes,
                           const UnitShare& share, int64_t rows, const ElementBytes& bytes);

/// How a rank runs a unit.
struct UnitPart {
  UnitSizes sizes;
  UnitShare share = {};
  UnitTypes types = {};
  bool keeps_graph = true;
  std::vector<bool> inputs_need_gradient = {};  ///< of each input; empty: none does
  std::vector<bool> inputs_present = {};        ///< of each input; empty: all
};

/// Messages between tp or cp ranks, or ranks that share experts.
enum class MessageKind {
  GatherRows,        ///< rows of `width` elements, where they are distributed over tp ranks
  SumRows,           ///< the same, summed: a reduce-scatter, or an all-reduce where they are not
  GatherExpertRows,  ///< rows of `width` elements, to all ranks that share experts
  SumExpertRows,     ///< the same, summed
  GatherRouting,     ///< `width` gates, which are wide, and as many indices of each row, likewise
  SumGates,          ///< gradients of these gates, summed
  SumStatistics,     ///< `width` wide elements of each row, summed over tp
  GatherStatistics,  ///< the same of every tp rank
  Attention,         ///< heads, keys and values between cp ranks
  Scan,              ///< heads of a gated delta rule between cp ranks
};
enum class SentIn { Forward, Backward, InputGradient, WeightGradient };
struct PlannedMessage {
  MessageKind kind;
  SentIn sent_in;
  int64_t width = 0;
  UnitRows rows = UnitRows::Tokens;  ///< Features: what the module's last unit reads
  bool in_chunks = false;            ///< UnitShare::tp_chunks, which overlap with GEMMs
};

struct OperationNeeds {
  int64_t rows = 0;        ///< of the output here
  bool is_absent = false;  ///< an input that this microbatch does not have
  bool is_view = false;    ///< the output is the first input's tensor
  bool input_has_gradient = false, has_gradient = false;  ///< of an input, of the output
  bool trains = false;                                    ///< a parameter of it does

  std::vector<int> gemms = {};  ///< ModelSpec::params, each multiplied with `gemm_rows` rows
  int64_t gemm_rows = 0;
  int64_t gemm_parts = 1;  ///< of each parameter: a row is multiplied with one of them
  int64_t elements = 0;    ///< copied or scaled
  /// Multiplications of a row with a state, on all tp ranks together; twice as many in backward.
  int64_t row_products = 0;
  int64_t per_pair = 0;  ///< elements of attention for a pair of a query and a key

  FunctionMemory memory = {};
  std::vector<PlannedMessage> messages = {};
};

/// The declarations of the operations of `unit.graph`, in their order.
std::vector<OperationNeeds> operation_needs(const ModelSpec& model, const UnitSpec& unit,
                                            const UnitPart& part);

}  // namespace detail
}  // namespace zea
