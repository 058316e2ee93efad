// SPDX-License-Identifier: Apache-2.0
// The gated delta rule of a run: the neighboring tokens of a packed row that one rank holds, whose
// first sample may have begun on ranks before it and whose last one may go on behind it.
//
// The state after tokens of a sample is affine in the state S before them, U + M S, and their
// outputs are o_U + o_M S. So every rank scans the sample that goes on from the rank before it at
// once, from the state [0 I] with values [v 0] (of value_dim + key_dim), which gives [U M] and
// [o_U o_M]. Ranks then send each other [U M], from which each makes the state S before its run.
// Backward sends D + M^T dS back, with D = o_M^T dO, likewise. No rank waits for the scan of
// another.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/delta_rule.hpp"

namespace zea {

/// Samples of a run, or parts of them, that are scanned together.
struct DeltaPiece {
  int64_t first = 0;   ///< its first token, in the run
  DeltaTokens tokens;  ///< from 0 on; without `starts`

  int64_t count() const { return tokens.bounds.back(); }
};

/// A run of tokens, behind the tokens before it that its convolution reads.
struct DeltaRun {
  /// `bounds`: of its samples, from 0 on. `halo` tokens before it are of its first sample, and none
  /// are where this begins with the run.
  DeltaRun(const std::vector<int64_t>& bounds, int64_t halo, bool continues, bool goes_on);
  DeltaRun() = default;

  int64_t tokens = 0;      ///< without the halo
  int64_t halo = 0;        ///< rows of x before the run
  bool continues = false;  ///< the first sample began before the run
  bool goes_on = false;    ///< the last sample goes on behind it
  at::Tensor starts;       ///< (rows of x) int64: the first row of each row's sample
  /// A sample that continues, and one that goes on, are pieces of their own.
  std::vector<DeltaPiece> pieces;

  /// Whether the piece begins, or ends, within a sample.
  bool enters(size_t piece) const { return continues && piece == 0; }
  bool leaves(size_t piece) const { return goes_on && piece + 1 == pieces.size(); }
};

/// Passes states, or their gradients, between the ranks that hold runs of a row.
class StatePassing {
 public:
  virtual ~StatePassing() = default;
  /// Begins to send `own` (value heads, key_dim, value_dim), or (..., value_dim + key_dim) with the
  /// matrix by which what comes from other ranks is multiplied; undefined: nothing is sent.
  virtual void begin(const at::Tensor& own) = 0;
  /// Ends it, and returns what came from other ranks (value heads, key_dim, value_dim); undefined:
  /// nothing comes.
  virtual at::Tensor end() = 0;
};

/// Returns the state that ranks pass to a run, given what each began to send, the nearest rank
/// first; undefined where none did.
at::Tensor passed_state(const std::vector<at::Tensor>& sent);

/// The outputs of forward that backward reads.
struct DeltaRunOutputs {
  at::Tensor y;                    ///< (tokens, values)
  at::Tensor mixed;                ///< as DeltaOutputs has it
  std::vector<at::Tensor> states;  ///< of each piece, as DeltaOutputs has them
  // Undefined where the run continues no sample:
  at::Tensor first;  ///< (value heads, key_dim, value_dim): S
  at::Tensor seen;   ///< (tokens of the first piece, value heads, key_dim): o_M, of x's type
  at::Tensor move;   ///< (value heads, key_dim, key_dim): M, if that sample goes on
};

/// x (halo + tokens, columns). Collective where `passing` is.
DeltaRunOutputs delta_run_forward(const at::Tensor& x, const DeltaRun& run,
                                  const DeltaWeights& weights, const DeltaShape& shape,
                                  StatePassing& passing);

/// The gradient of x, halo included, for that of `outputs.y`, which is not read.
at::Tensor delta_run_backward(const at::Tensor& dy, const at::Tensor& x, const DeltaRun& run,
                              const DeltaRunOutputs& outputs, const DeltaWeights& weights,
                              const DeltaShape& shape, const DeltaGradients& gradients,
                              StatePassing& passing);

namespace detail {

/// Scans rows of mixed (tokens, columns), as MixDeltaToken makes them: writes the outputs before
/// the norm, o (tokens, values), and fills all of `out` but y.
void scan_run(const at::Tensor& mixed, const DeltaRun& run, const DeltaShape& shape,
              const at::TensorOptions& type, StatePassing& passing, DeltaRunOutputs& out);
void scan_run_backward(const at::Tensor& mixed, const DeltaRun& run, const DeltaShape& shape,
                       const at::Tensor& d_o, const DeltaRunOutputs& out, StatePassing& passing,
                       const at::Tensor& dmixed);

}  // namespace detail
}  // namespace zea
