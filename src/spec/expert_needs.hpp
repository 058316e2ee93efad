// SPDX-License-Identifier: Apache-2.0
// The declarations of a mixture's operations: routing, sending rows to experts and summing what
// these return, on ranks that share experts.
#pragma once

#include "spec/operation_needs.hpp"

namespace zea::detail {

/// Returns the probability that a token chooses an expert of a part of the experts, which are in
/// `parts` equal parts, if all choices are equally likely.
double chosen_share(const RouterSpec& router, int64_t parts);
/// Returns the largest of the model's mixtures.
double chosen_share(const ModelSpec& model, int64_t parts);
/// Returns the expected bytes of dispatch by all-to-all over those by all-gather, if `ep_cp` cp
/// ranks of `ep_dp_shard` replicas share experts: tokens travel along cp first, and each of `ep_tp`
/// tp ranks sends only to ranks with its tp coordinate. Requires two or more such ranks.
double dispatch_ratio(const ModelSpec& model, int64_t ep_cp, int64_t ep_dp_shard, int64_t ep_tp);

/// A linear whose outputs are wide (Operation::has_wide_outputs).
FunctionMemory wide_linear_memory(int64_t rows, const WeightSpec& weight, bool bias_trains,
                                  const ElementBytes& bytes);

/// A mixture on one rank.
struct MixturePart {
  const RouterSpec& router;
  const UnitSizes& sizes;
  int64_t hidden;
  int ep;          ///< ranks that share experts
  int ep_cp;       ///< those of them along cp
  int ep_tp;       ///< and along tp, which have the same tokens
  bool exchanges;  ///< tokens go only to the ranks of their experts
  ElementBytes bytes;

  /// Returns the ranks that share experts and have other tokens.
  int token_ranks() const { return ep / ep_tp; }
  /// Returns the experts of this rank. Its rows are at most those of which all are chosen by every
  /// token.
  LocalExperts local_experts() const;
  /// Returns how many of so many rows at most there are where tokens choose all experts equally
  /// often.
  int64_t usual_rows(int64_t most) const;
};

/// Declares an operation whose first input has `rows` rows of `bytes` together.
void declare_mixture(OperationKind kind, const MixturePart& part, int64_t rows, int64_t bytes,
                     OperationNeeds& needs);

}  // namespace zea::detail
