// SPDX-License-Identifier: Apache-2.0
// Attention sinks: what a key with a score of each head and a value of 0 changes.
#include "kernels/row_kernels.hpp"
#include "model/attention.hpp"

namespace zea {
namespace {

/// The sinks of the heads of `lse` (tokens, heads), from head `first` on, in its type.
at::Tensor sinks_of(const Parameter& sinks, int64_t first, const at::Tensor& lse) {
  return sinks.value().narrow(0, first, lse.size(1)).to(lse.scalar_type());
}

}  // namespace

void add_sinks(const AttentionSums& sums, const Parameter& sinks, int64_t first) {
  if (sums.out.size(0) == 0) return;
  const at::Tensor all = at::logaddexp(sums.lse, sinks_of(sinks, first, sums.lse));
  const at::Tensor factors = (sums.lse - all).exp_().contiguous();
  scale_rows(sums.out.view({-1, sums.out.size(2)}), factors.view(-1));
  sums.lse.copy_(all);
}

void add_sink_gradients(Parameter& sinks, const at::Tensor& dout, const AttentionSums& sums,
                        int64_t first) {
  if (!sinks.trainable() || dout.size(0) == 0) return;
  const int64_t dim = dout.size(2);
  const at::Tensor shares = (sinks_of(sinks, first, sums.lse) - sums.lse).exp_();
  const at::Tensor dots = row_dots(dout.view({-1, dim}), sums.out.view({-1, dim}));
  const at::Tensor terms = shares.mul_(dots.view(sums.lse.sizes())).neg_().contiguous();
  add_column_sums(sinks.gradient().narrow(0, first, sums.lse.size(1)), terms);
}

}  // namespace zea
