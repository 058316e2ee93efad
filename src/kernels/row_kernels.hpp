// SPDX-License-Identifier: Apache-2.0
// Kernels over rows of tokens, each in one pass over memory, forward and backward: gated
// activations, GELU with a linear's bias, rotary positions, dropout, rows for experts, norms, sums
// of columns, and tiles of logits. Tensors are contiguous, of fp64, fp32 or bf16, on the host or,
// in a build with device kernels, on devices; bf16 is computed in fp32 and rounded once. Functions
// named `..._reference` compute the same by libtorch's operations: tests compare with them, and all
// other tensors take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zea {

/// SwiGLU, and GeGLU with GELU by tanh (arXiv:2002.05202).
enum class Gating { Silu, Gelu, GeluTanh };

/// x (rows, 2 * width), gate first: activation(gate) * up, (rows, width).
at::Tensor gated_forward(const at::Tensor& x, Gating gating);
at::Tensor gated_backward(const at::Tensor& dy, const at::Tensor& x, Gating gating);

/// x (rows, 2 * width), whose columns are gate, up, gate, up and so on: g sigmoid(alpha g) (u + 1)
/// of g = min(gate, limit) and u = up between -limit and limit, (rows, width) (gpt-oss,
/// arXiv:2508.10925).
at::Tensor clamped_gate_forward(const at::Tensor& x, double alpha, double limit);
at::Tensor clamped_gate_backward(const at::Tensor& dy, const at::Tensor& x, double alpha,
                                 double limit);

/// Multiplies each row of x (rows, width) by its element of `factors` (rows), of x's wide type, in
/// place.
void scale_rows(const at::Tensor& x, const at::Tensor& factors);

/// The scalar products of the rows of x and y (rows, width): (rows), of the wide type.
at::Tensor row_dots(const at::Tensor& x, const at::Tensor& y);

at::Tensor clamped_gate_forward_reference(const at::Tensor& x, double alpha, double limit);
at::Tensor clamped_gate_backward_reference(const at::Tensor& dy, const at::Tensor& x, double alpha,
                                           double limit);
void scale_rows_reference(const at::Tensor& x, const at::Tensor& factors);
at::Tensor row_dots_reference(const at::Tensor& x, const at::Tensor& y);

/// How a router's outputs become gates: by softmax or sigmoids; perhaps divided by their sum, which
/// `min_sum` is added to; multiplied by `factor`. Experts are chosen from the best `topk_groups` of
/// `groups` equal groups; a group's score is the sum of the scores of its two best experts.
struct RouteOptions {
  int64_t chosen;  ///< experts of a token
  bool are_sigmoids, renormalizes;
  double min_sum, factor;
  int64_t groups = 1, topk_groups = 1;
};

struct Routes {
  at::Tensor gates;   ///< (tokens, chosen), of the outputs' wide type
  at::Tensor chosen;  ///< (tokens, chosen) int64, best first; ties go to the lower index
};

/// outputs (tokens, experts); `bias` (experts), perhaps undefined, is added to scores for the
/// choice alone.
Routes route_rows(const at::Tensor& outputs, const at::Tensor& bias, const RouteOptions& options);
Routes route_rows_reference(const at::Tensor& outputs, const at::Tensor& bias,
                            const RouteOptions& options);
/// The gradient of the outputs, given that of the gates.
at::Tensor route_rows_backward(const at::Tensor& dgates, const at::Tensor& outputs,
                               const at::Tensor& chosen, const RouteOptions& options);
at::Tensor route_rows_backward_reference(const at::Tensor& dgates, const at::Tensor& outputs,
                                         const at::Tensor& chosen, const RouteOptions& options);

struct PlacesOfCopies {
  at::Tensor places;  ///< (copies) int64; -1: nowhere
  at::Tensor ends;    ///< (experts) int32: of each expert's places
};

/// `sorted` (copies) int64: experts, ascending; `copies` (copies) int64: the copies of tokens that
/// have chosen these. Those of `experts` and later ones go nowhere.
PlacesOfCopies place_copies(const at::Tensor& sorted, const at::Tensor& copies, int64_t experts);
PlacesOfCopies place_copies_reference(const at::Tensor& sorted, const at::Tensor& copies,
                                      int64_t experts);

/// Adds to `target` (experts, rows, width) the bf16 `made` of experts that have tokens, by the ends
/// (experts) int32 of these.
void add_active_rows(const at::Tensor& target, const at::Tensor& made, const at::Tensor& ends);
void add_active_rows_reference(const at::Tensor& target, const at::Tensor& made,
                               const at::Tensor& ends);

/// Rotates the first `heads` heads of x (tokens, all_heads, head_dim), of each the first
/// coordinates, by the angles of the tables (tokens, half of these coordinates), or by their
/// negatives, in place. With tables (tokens, parts, half of these) head h uses row h % parts. Pairs
/// are coordinates of both halves, or neighbors.
void rotate_heads(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads, bool backwards, bool of_neighbors = false);

/// The elements of rows that dropout drops (arXiv:1207.0580): each is drawn from a counter of its
/// row's key and its column.
struct Dropout {
  double rate;               ///< the probability, below 1
  uint64_t stream = 0;       ///< beside the keys of rows, what the numbers are drawn for
  int64_t first_column = 0;  ///< the index of x's first column among all ranks'
};

/// x (rows, width) without the elements that are dropped, the others divided by 1 - rate. `keys`
/// (rows) int64, of any bits. The same for a gradient.
at::Tensor drop_elements(const at::Tensor& x, const at::Tensor& keys, const Dropout& dropout);

/// Rows of tokens for their experts: x (tokens, width) -> (rows, width), each row at the `places`
/// (tokens, chosen) int64 of its token, -1 where an expert is on another rank. Rows of the result
/// at which none is have any content.
at::Tensor send_rows(const at::Tensor& x, const at::Tensor& places, int64_t rows);

/// y (rows, width) -> (tokens, width): the sum of the rows at a token's places, without -1, each
/// times its gate; `gates` (tokens, chosen) of y's wide type, undefined: all 1.
at::Tensor combine_rows(const at::Tensor& y, const at::Tensor& places, const at::Tensor& gates);

/// The gradients of combine_rows() for `dx` (tokens, width); `dy` as the rows of send_rows().
struct CombinedGradients {
  at::Tensor dy, dgates;
};
CombinedGradients combine_rows_backward(const at::Tensor& dx, const at::Tensor& y,
                                        const at::Tensor& places, const at::Tensor& gates);

at::Tensor send_rows_reference(const at::Tensor& x, const at::Tensor& places, int64_t rows);
at::Tensor combine_rows_reference(const at::Tensor& y, const at::Tensor& places,
                                  const at::Tensor& gates);
CombinedGradients combine_rows_backward_reference(const at::Tensor& dx, const at::Tensor& y,
                                                  const at::Tensor& places,
                                                  const at::Tensor& gates);
at::Tensor drop_elements_reference(const at::Tensor& x, const at::Tensor& keys,
                                   const Dropout& dropout);
at::Tensor gated_forward_reference(const at::Tensor& x, Gating gating);
at::Tensor gated_backward_reference(const at::Tensor& dy, const at::Tensor& x, Gating gating);
void rotate_heads_reference(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                            int64_t heads, bool backwards, bool of_neighbors = false);

// GELU with the bias of the linear in front of it, and that bias's gradient.

/// x times the normal distribution's integral (arXiv:1606.08415), its approximation by tanh, which
/// GPT-2 has, or CLIP's, x sigmoid(1.702 x).
enum class Gelu { Erf, Tanh, Quick };

/// GELU of x + bias for x (rows, width); of x alone if `bias` (width) is undefined.
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Gelu kind);

/// The gradient of x. Where `dbias` (width) is defined, fp32, or fp64 with x, the bias's is added
/// to it.
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                         Gelu kind, const at::Tensor& dbias);

at::Tensor gelu_forward_reference(const at::Tensor& x, const at::Tensor& bias, Gelu kind);
at::Tensor gelu_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias, Gelu kind, const at::Tensor& dbias);

// RMSNorm and layer norm over rows, fused with the sum of a residual in front of them and the
// residual's gradient behind them.

/// Layer norm (arXiv:1607.06450) where `bias` is defined, RMSNorm (arXiv:1910.07467) otherwise.
struct NormParameters {
  at::Tensor weight, bias;  ///< (hidden), of the input's type
  double eps = 0;
  double offset = 0;  ///< added to the weight
};

/// A norm's outputs and saved tensors.
struct NormRows {
  at::Tensor x;      ///< (rows, hidden): what was normalized
  at::Tensor y;      ///< (rows, hidden)
  at::Tensor mean;   ///< (rows) of a layer norm, fp32 or wider
  at::Tensor scale;  ///< (rows) 1 / sqrt(mean square, or variance, + eps), fp32 or wider
};

/// y = (x - mean) scale (weight + offset) + bias of x, or of x + added where that is defined.
NormRows norm_forward(const at::Tensor& x, const at::Tensor& added, const NormParameters& norm);

/// The gradients to compute: those of parameters are added to the tensors here, (hidden), fp32, or
/// fp64 with x, which are undefined for frozen parameters.
struct NormGradients {
  at::Tensor weight, bias;
  bool needs_dx = true;
};

/// The gradient of x: what `dy` makes of it, and `before`, where that is defined; undefined unless
/// it is needed. `rows.y` is not read.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& before, const NormRows& rows,
                         const NormParameters& norm, const NormGradients& gradients);

NormRows norm_forward_reference(const at::Tensor& x, const at::Tensor& added,
                                const NormParameters& norm);
at::Tensor norm_backward_reference(const at::Tensor& dy, const at::Tensor& before,
                                   const NormRows& rows, const NormParameters& norm,
                                   const NormGradients& gradients);

// RMSNorm of each head of queries and keys before rotary positions (Qwen3, arXiv:2505.09388);
// values are normed as well (Gemma 4), or stay as they are.

/// Weights (head_dim), of the input's type; the first `queries` heads of x are queries, the next
/// `keys` keys.
struct HeadNormParameters {
  at::Tensor query, key;
  int64_t queries = 0, keys = 0;
  double eps = 0;
  double offset = 0;      ///< added to the weights
  at::Tensor value = {};  ///< frozen; undefined: values stay as they are
};

struct HeadNorms {
  at::Tensor y;  ///< (tokens, heads, head_dim)
  at::Tensor
      scale;  ///< (tokens, heads): 1 / sqrt(mean square + eps), fp32 or wider; not of copied values
};

/// y = x scale (weight + offset) of each head of x (tokens, heads, head_dim) that has a weight.
HeadNorms head_norms_forward(const at::Tensor& x, const HeadNormParameters& norm);

/// The gradients of weights, to be added to, (head_dim), fp32, or fp64 with x; undefined for frozen
/// weights.
struct HeadNormGradients {
  at::Tensor query, key;
};

/// The gradient of x.
at::Tensor head_norms_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                               const HeadNormParameters& norm, const HeadNormGradients& gradients);

HeadNorms head_norms_forward_reference(const at::Tensor& x, const HeadNormParameters& norm);
at::Tensor head_norms_backward_reference(const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& scale, const HeadNormParameters& norm,
                                         const HeadNormGradients& gradients);

// Sums into gradients that are wider than the terms: libtorch would convert all terms first, these
// kernels convert while they add. On the host; other devices and types take libtorch's operations,
// as the functions named `..._reference` do.

/// sum += x, of one shape; sum may be of a wider type.
void add_converted(const at::Tensor& sum, const at::Tensor& x);

/// sum (columns) += x (rows, columns) summed over rows, in sum's type; the same with any number of
/// threads.
void add_column_sums(const at::Tensor& sum, const at::Tensor& x);

void add_converted_reference(const at::Tensor& sum, const at::Tensor& x);
void add_column_sums_reference(const at::Tensor& sum, const at::Tensor& x);

// Tiles of logits (rows, columns), of which only some exist at a time: a running log-sum-exp
// forward, softmax minus one-hot backward, each in one or two passes over the tile in the product's
// type.

/// Running sums of each row over the tiles so far; fp32, or fp64 for logits of that type.
struct LogitSums {
  /// Sums of no tile yet: -inf, 0, 0.
  LogitSums(int64_t rows, const at::TensorOptions& wide);
  LogitSums narrow(int64_t begin, int64_t count) const;

  at::Tensor maxima;  ///< (rows)
  at::Tensor sums;    ///< (rows) of exp(logit - maximum)
  at::Tensor picked;  ///< (rows) the target's logit, 0 where no tile had it

 private:
  LogitSums() = default;
};

/// Adds a tile whose first column is the vocabulary's `first`. `targets` (rows) int64: ones that
/// the tile does not hold are left alone.
void add_logits(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                const LogitSums& sums);

/// Turns a tile into its gradient, in place: (exp(logit - lse) - [it is the target's]) scale. `lse`
/// (rows) as LogitSums' type, `scale` a scalar tensor of it.
void logits_to_gradient(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                        const at::Tensor& lse, const at::Tensor& scale);

void add_logits_reference(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                          const LogitSums& sums);
void logits_to_gradient_reference(const at::Tensor& logits, const at::Tensor& targets,
                                  int64_t first, const at::Tensor& lse, const at::Tensor& scale);

}  // namespace zea
