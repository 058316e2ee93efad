// SPDX-License-Identifier: Apache-2.0
// Attention sinks: what a key with a score of each head and a value of 0 changes.
#include "kernels/row_kernels.hpp"
#include "model/attention.hpp"

namespace zea {
namespace {

/// The sinks of the heads of `lse` (tokens, heads), in its type.
at::Tensor sinks_of(const AttentionScores& scores, const at::Tensor& lse) {
  return scores.sinks->value().narrow(0, scores.first_head, lse.size(1)).to(lse.scalar_type());
}

}  // namespace

void add_sinks(const AttentionSums& sums, const AttentionScores& scores) {
  if (sums.out.size(0) == 0) return;
  const at::Tensor all = at::logaddexp(sums.lse, sinks_of(scores, sums.lse));
  const at::Tensor factors = (sums.lse - all).exp_().contiguous();
  scale_rows(sums.out.view({-1, sums.out.size(2)}), factors.view(-1));
  sums.lse.copy_(all);
}

void add_sink_gradients(const AttentionScores& scores, const at::Tensor& dout,
                        const AttentionSums& sums) {
  Parameter& sinks = *scores.sinks;
  if (!sinks.trainable() || dout.size(0) == 0) return;
  const int64_t dim = dout.size(2);
  const at::Tensor shares = (sinks_of(scores, sums.lse) - sums.lse).exp_();
  const at::Tensor dots = row_dots(dout.view({-1, dim}), sums.out.view({-1, dim}));
  const at::Tensor terms = shares.mul_(dots.view(sums.lse.sizes())).neg_().contiguous();
  add_column_sums(sinks.gradient().narrow(0, scores.first_head, sums.lse.size(1)), terms);
}

}  // namespace zea
