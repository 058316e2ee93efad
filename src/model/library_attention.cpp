// SPDX-License-Identifier: Apache-2.0
#include "library_attention.hpp"

#include <limits>

#include "stacked_slices.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// Adds `part`, attention of the same queries over further keys, in place.
void merge(const AttentionSums& sums, const AttentionSums& part) {
  const Tensor lse = at::logaddexp(sums.lse, part.lse);
  sums.out.mul_(at::exp(sums.lse - lse).unsqueeze(-1));
  sums.out.addcmul_(part.out, at::exp(part.lse - lse).unsqueeze(-1));
  sums.lse.copy_(lse);
}

}  // namespace

void add_library_attention(const AttentionSums& sums, const AttentionInputs& in,
                           const std::vector<AttentionSlice>& slices) {
  for (const SliceStack& stack : stack_slices(slices)) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1), in.q.device());
    const FlashOutputs outputs = flash_forward(stacked.gather(in.q, in.k, in.v));
    const AttentionSums rows{stacked.take_queries(sums.out), stacked.take_queries(sums.lse)};
    merge(rows, {stacked.real_queries(outputs.out),
                 stacked.real_queries(outputs.lse.unsqueeze(-1)).squeeze(-1)});
    stacked.put_queries(rows.out, sums.out);
    stacked.put_queries(rows.lse, sums.lse);
  }
}

void add_library_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                           const Tensor& dout, const AttentionSums& sums,
                           const std::vector<AttentionSlice>& slices) {
  const Tensor lse = sums.lse.unsqueeze(-1);
  for (const SliceStack& stack : stack_slices(slices)) {
    const StackedSlices stacked(stack, in.q.size(1), in.k.size(1), in.q.device());
    // Of padding: no gradient, and a weight of exp(score - inf) = 0 for every key.
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto [dq, dk, dv] = flash_backward(
        stacked.gather_queries(dout, 0), stacked.gather(in.q, in.k, in.v),
        {stacked.gather_queries(sums.out), stacked.gather_queries(lse, kInfinity).squeeze(-1)});
    stacked.add_queries(gradients.dq, dq);
    stacked.add_keys(gradients.dk, dk);
    stacked.add_keys(gradients.dv, dv);
  }
}

}  // namespace zea::detail
