// SPDX-License-Identifier: Apache-2.0
// The differentiable functions that units consist of. Functions that read parameters add the
// parameters' gradients straight into their buffers and return only the gradient of their tensor
// inputs. Rows are tokens: there is no batch dim. Norms, losses and attention compute in fp32 when
// the input is bf16. The parameters of one call are all trainable or all frozen.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/row_kernels.hpp"
#include "model/attention.hpp"
#include "model/parameter.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// Waits for rows from other tp ranks and returns them. To be called once.
using ArrivingRows = std::function<at::Tensor()>;

/// The gathered rows of all tp ranks, and their product with a matrix.
struct GatheredProduct {
  at::Tensor product;  ///< in the order of the ranks
  at::Tensor rows;     ///< good until the function returns
  int chunks = 1;      ///< the gather's; `rows` are in the order of the chunks
};
/// Waits for rows and returns them with their product with b (k, n), plus `bias` (n) if defined. To
/// be called once.
using ArrivingProduct = std::function<GatheredProduct(const at::Tensor& b, const at::Tensor& bias)>;

/// The rows of a call of a linear that tp ranks share.
class SharedRows : public torch::CustomClassHolder {
 public:
  /// Whether ranks hold parts of the rows; else each holds all, and gathering is nothing.
  virtual bool are_sharded() const = 0;
  /// x (rows here, width) -> (rows of all ranks, width), good until the function returns.
  virtual ArrivingRows gather(const at::Tensor& x) const = 0;
  /// Gathers x in chunks, each of which is multiplied once it has arrived.
  virtual ArrivingProduct gather_to_multiply(const at::Tensor& x) const = 0;
  /// Returns x (rows of all ranks, k) in the order of rows that were gathered in `chunks` chunks.
  virtual at::Tensor in_chunks(const at::Tensor& x, int chunks) const = 0;
  /// The sum over ranks of a b, for a (rows of all ranks, k) -> (rows here, width).
  virtual ArrivingRows summed_product(const at::Tensor& a, const at::Tensor& b) const = 0;
};

/// The dim of a linear's weight that tp ranks shard. Column-parallel: outputs are sharded, inputs
/// gathered. Row-parallel: inputs are sharded, outputs summed, and the whole bias is added once.
enum class TpLinear { None, Column, Row };

/// x (tokens, in) -> (tokens, out). `weight` as `order` says, or any shape with out first; `bias`
/// (out) may be null. `rows`: if the weight is sharded. `has_wide_outputs`: in bf16 the
/// outputs are fp32 (not with a sharded weight) and their gradient is rounded to bf16.
at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias,
                  WeightOrder order = WeightOrder::OutIn, TpLinear cut = TpLinear::None,
                  const c10::intrusive_ptr<SharedRows>& rows = {}, bool has_wide_outputs = false);

/// The norm of x (rows, hidden) over its last dim; `weight` (hidden) may be null; `bias` (hidden)
/// is null for RMSNorm.
at::Tensor norm(const at::Tensor& x, Parameter* weight, Parameter* bias, const NormSpec& spec);

/// A sum and its norm, as in blocks with residuals.
struct NormedSum {
  at::Tensor sum, normed;
};

/// x + added and its norm; of x itself where `added` is undefined. The gradients of both join in
/// one pass.
NormedSum norm_sum(const at::Tensor& x, const at::Tensor& added, Parameter& weight, Parameter* bias,
                   const NormSpec& spec);

/// The heads that norms of heads read: queries, keys, and values, which stay as they are or are
/// normed without a weight.
struct NormedHeads {
  int64_t queries, keys;
  bool norms_values = false;
};

/// Norms the first heads of x (tokens, heads, head_dim) by `query` (head_dim) and the next ones by
/// `key` (head_dim).
at::Tensor head_norms(const at::Tensor& x, Parameter& query, Parameter& key,
                      const NormedHeads& heads, const NormSpec& spec);

/// The rows of attention, and the gate of each query.
struct GatedHeads {
  at::Tensor qkv, gates;
};

/// x (tokens, (2 heads + 2 key_value_heads) * dim), in which each of `heads` query heads is
/// followed by its gate -> qkv (tokens, (heads + 2 key_value_heads) * dim) and gates (tokens, heads
/// * dim).
GatedHeads split_gates(const at::Tensor& x, int64_t heads, int64_t dim);

/// x (tokens, width) with its columns from `first_key` on once more: keys, and these as values.
at::Tensor with_keys_as_values(const at::Tensor& x, int64_t first_key);

/// Columns of x: the first ones, and the rest.
struct SplitRows {
  at::Tensor first, rest;
};
SplitRows split_columns(const at::Tensor& x, int64_t count);
/// Concatenates the columns of x (tokens, width) and y (tokens, any width).
at::Tensor joined_columns(const at::Tensor& x, const at::Tensor& y);

/// The rows of attention from those of multi-head latent attention: queries (tokens, heads * (plain
/// + rotary)), keys_and_values (tokens, heads * (plain + value)), and `rotary` (tokens, rotary) of
/// all keys -> (tokens, 3 * heads * dim). The coordinates of a head's queries and keys that rotate
/// are first, pairs as halves; behind those that a head has not are zeros.
at::Tensor latent_heads(const at::Tensor& queries, const at::Tensor& keys_and_values,
                        const at::Tensor& rotary, const LatentSpec& latent, int64_t dim);

/// Attention without backward of few queries to the latents of many tokens (tokens, 1, rotary +
/// rank), which are keys and values of one head: queries q (queries, heads, dim) of latent_heads(),
/// by `weight` (heads * (plain + value), rank) of keys and values -> (queries, heads, rotary +
/// rank), and what comes of these, (queries, heads * (rotary + rank)) -> (queries, heads * dim).
at::Tensor queries_of_latents(const at::Tensor& q, const at::Tensor& weight,
                              const LatentSpec& latent);
at::Tensor values_of_latents(const at::Tensor& attended, const at::Tensor& weight,
                             const LatentSpec& latent, const HeadShape& heads);

/// Returns the first `count` coordinates of each head of x (tokens, heads * dim): (tokens, heads *
/// count).
at::Tensor first_of_heads(const at::Tensor& x, int64_t dim, int64_t count);

/// x (tokens, hidden), each column times its number of `scale` (hidden), or all times one that
/// never trains.
at::Tensor layer_scale(const at::Tensor& x, Parameter& scale);

/// x clamped between two scalars that never train, or between -bound and bound.
at::Tensor clamped(const at::Tensor& x, Parameter& least, Parameter& most);
at::Tensor clamped(const at::Tensor& x, double bound);

/// (factor x - shift) scale for x (rows, hidden); `shift` and `scale` (hidden) never train, and
/// both may be null.
at::Tensor standardized(const at::Tensor& x, double factor, Parameter* shift, Parameter* scale);

/// x (tokens, width) without what `dropout` drops of the tokens of `keys` (tokens) int64; the mask
/// is drawn again in backward, not kept.
at::Tensor dropped(const at::Tensor& x, const at::Tensor& keys, const Dropout& dropout);

/// Adds scale times z (tokens, columns) to the columns of y (tokens, width) from `begin` on, in
/// place: y must not be used any more.
at::Tensor add_to_columns(const at::Tensor& y, const at::Tensor& z, int64_t begin, double scale);

/// Rows of `weight` (vocabulary, hidden) at `ids` (tokens) int64.
at::Tensor embedding(const at::Tensor& ids, Parameter& weight);

/// Returns weighted sums of rows of `table` (positions, hidden): those of `rows` (tokens, n) int64
/// times `shares` (tokens, n) -> (tokens, hidden).
at::Tensor interpolated_rows(const at::Tensor& rows, const at::Tensor& shares, Parameter& table);

/// The image tokens in the rows here, which may be any part of the images' tokens.
struct ImageRows {
  at::Tensor patches;    ///< int64, ascending: rows that are patches
  at::Tensor positions;  ///< (rows) int64: of each row's token; the class token's is 0, registers
                         ///< have those behind the last
};

/// Learned tokens and positions of images, each of any shape whose last dim is hidden.
struct ImageParameters {
  Parameter& class_token;
  Parameter& positions;
  Parameter* registers = nullptr;  ///< tokens without positions; null: none
};

/// Puts `patches` (patches, hidden) and learned tokens into their rows and adds positions: (rows,
/// hidden).
at::Tensor image_tokens(const at::Tensor& patches, const ImageRows& rows,
                        const ImageParameters& learned);

/// Unfolds x (columns, hidden) as a convolution's weight (out, hidden, width) lies: each row of
/// `windows` (rows, width) int64 lists rows of x, which become one row -> (rows, hidden * width).
/// -1: zeros.
at::Tensor windows_of(const at::Tensor& x, const at::Tensor& windows);

/// (spec.rows(), width) in the type of `options`: sines, then cosines, of a position at frequencies
/// from 1 to 1/10000, for each row of a window; zeros for positions below 0.
at::Tensor relative_sinusoids(const RelativeSpec& spec, int64_t width,
                              const at::TensorOptions& options);
/// Attention with relative positions: qkv (rows, 3 * heads * dim), the keys of distances
/// (spec.relative->rows(), heads * dim), `scale` (dim) of queries, `positions` (rows) int64 of rows
/// in their clips, which lie whole one after the other -> (rows, heads * dim).
at::Tensor relative_attention(const at::Tensor& qkv, const at::Tensor& distances,
                              const at::Tensor& positions, Parameter& scale,
                              const AttentionSpec& spec);
/// Row r of column c becomes the sum over taps t of weight (width, 1, taps)[c, t] times x (rows,
/// width)[r - (taps - 1) + t, c], without rows before the clip. `positions` as above.
at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& positions, Parameter& weight);

/// Adds biases to the queries and the values of qkv (tokens, query + key + value widths), in place.
at::Tensor add_query_value_biases(const at::Tensor& qkv, Parameter& query, Parameter& value);

/// The rows `rows` int64, ascending, of each of `states` (tokens, hidden), side by side: (rows,
/// states * hidden).
at::Tensor joined_rows(const std::vector<at::Tensor>& states, const at::Tensor& rows);

/// A run of contiguous local features that average the same number of frames.
struct FrameRun {
  int64_t features, frames;

  bool operator==(const FrameRun&) const = default;
};

/// Averages patches over frames. x: the features of all runs, (frames, patches, width) each,
/// concatenated to (rows, width). Returns (features * patches, width); x if no run has several
/// frames.
at::Tensor frame_means(const at::Tensor& x, const std::vector<FrameRun>& runs, int64_t patches);

/// Returns weighted sums of rows of x (rows, width): those of `rows` (features, n) int64 times
/// `shares` (features, n) -> (features, width).
at::Tensor mixed_rows(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& shares);

/// x (features, width) with `end` (width) in the rows `rows` int64.
at::Tensor with_row_ends(const at::Tensor& x, const at::Tensor& rows, Parameter& end);

/// Rotates the first `heads` heads of x (tokens, all heads of head_dim) by tables (tokens, pairs);
/// the two halves of a head's first 2 * pairs coordinates form the pairs, or neighbors do. Works in
/// place, and so does backward on the gradient: neither tensor may be used elsewhere. With tables
/// (tokens, parts, pairs) head h uses row h % parts.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads, int64_t head_dim, bool of_neighbors = false);

/// x (tokens, 2 * width), gate first: activation(gate) * up, (tokens, width). Silu or a GELU.
at::Tensor gated(const at::Tensor& x, Activation activation);

/// x (tokens, 2 * width), whose columns are gate, up, gate, up and so on: (tokens, width).
at::Tensor clamped_gated(const at::Tensor& x, const ClampedGate& gate);

/// The gates (tokens, chosen), in the wide type of `outputs`, of each token's experts, and the
/// experts' indices (tokens, chosen) int64, best first. outputs (tokens, experts): of the router's
/// linear; bias (experts) of the choice alone; undefined: none.
struct Routing {
  at::Tensor gates, chosen;
};
Routing route(const at::Tensor& outputs, const RouterSpec& router, const at::Tensor& bias = {});

/// The weights of a router's losses, which depend on the whole step (train/router_losses.hpp).
struct RouterLossWeights {
  at::Tensor experts;    ///< (experts) double, of the softmax of a token's scores; undefined: none
  double squares = 0;    ///< of the square of their logsumexp
  double gradients = 1;  ///< of gradients: those of all tp ranks are added up
};
/// By the names of units.
using RouterLossesOfUnits = std::map<std::string, RouterLossWeights>;
/// The sum over tokens of these, a double scalar; outputs (tokens, experts), of the router's
/// linear.
at::Tensor router_loss(const at::Tensor& outputs, const RouterLossWeights& weights);

/// gates (tokens, chosen) times the elements of `scale` (experts) that `chosen` names.
at::Tensor scaled_gates(const at::Tensor& gates, const at::Tensor& chosen, Parameter& scale);

/// The experts [first, first + count) of a mixture of `all`.
struct ExpertRange {
  int64_t first, count, all;
  bool adds_biases = true;  ///< false: of their output, which another tp rank adds
};

/// The rows of tokens for their experts, by expert, and for each expert in the order of the tokens.
struct DispatchedRows {
  /// (rows of these experts, width). On a device, whose host does not know how many these are, as
  /// many rows as there can be, the last ones of any content.
  at::Tensor rows;
  at::Tensor places;  ///< (tokens, chosen) int64: the row of each token's copies; -1: not here
  at::Tensor ends;    ///< (experts): the row after each expert's last; int64, on a device int32
};
DispatchedRows dispatch_to_experts(const at::Tensor& x, const at::Tensor& chosen,
                                   const ExpertRange& experts);

/// The linears of experts: x (rows, in), sorted by expert, `ends` as in DispatchedRows; weight
/// (experts * out, in), or (experts, in, out); bias (experts, out) may be null -> (rows, out).
at::Tensor expert_linear(const at::Tensor& x, Parameter& weight, const at::Tensor& ends,
                         WeightOrder order = WeightOrder::OutIn, Parameter* bias = nullptr);

/// x (rows of experts, width) -> (tokens, width): the sum of a token's rows, times their gates.
at::Tensor combined(const at::Tensor& x, const at::Tensor& gates, const at::Tensor& places);

/// activation(x + bias) for `bias` (width), which may be null; x may be changed, and is not to be
/// used any more.
at::Tensor activate_biased(const at::Tensor& x, Parameter* bias, Activation activation);

/// Sum over rows of -log softmax(x W^T)[target], as a double scalar. x (rows, hidden), weight
/// (vocabulary, hidden), targets (rows) int64. Computed in chunks of rows, so all logits never
/// exist at once; the backward recomputes them. `softcap` c: of logits c tanh(logit / c); 0: as
/// they are.
at::Tensor linear_cross_entropy(const at::Tensor& x, Parameter& weight, const at::Tensor& targets,
                                double softcap = 0);

/// x in the type that sums and norms are taken in: fp32 for bf16, itself otherwise.
at::Tensor wide(const at::Tensor& x);

}  // namespace zea
