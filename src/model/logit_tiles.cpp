// SPDX-License-Identifier: Apache-2.0
#include "model/logit_tiles.hpp"

#include "core/kernel_sizes.hpp"
#include "kernels/matmul.hpp"
#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

/// Calls visit(begin, count) for the pieces of [0, all).
template <class Visit>
void for_pieces(int64_t all, int64_t step, Visit visit) {
  for (int64_t begin = 0; begin < all; begin += step) visit(begin, std::min(step, all - begin));
}

/// Turns a tile into its gradient, before it was capped.
void capped_to_gradient(const at::Tensor& logits, const at::Tensor& targets, int64_t first,
                        const at::Tensor& lse, const at::Tensor& scale, double softcap) {
  // 1 - tanh^2
  const at::Tensor slope =
      softcap > 0 ? logits.square().mul_(-1 / (softcap * softcap)).add_(1) : at::Tensor();
  logits_to_gradient(logits, targets, first, lse, scale);
  if (slope.defined()) logits.mul_(slope);
}

}  // namespace

void cap_logits(const at::Tensor& logits, double softcap) {
  if (softcap > 0) logits.div_(softcap).tanh_().mul_(softcap);
}

RowLogits row_logits(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& targets,
                     double softcap, KeptLogits* kept) {
  const LogitTile tile(x.size(0), matrix.size(0), logit_bounds(!x.is_cpu()));
  const LogitSums sums(x.size(0), wide(x.narrow(0, 0, 0)).options());
  for_pieces(x.size(0), tile.rows, [&](int64_t row, int64_t rows) {
    const LogitSums part = sums.narrow(row, rows);
    for_pieces(matrix.size(0), tile.columns, [&](int64_t column, int64_t columns) {
      const at::Tensor logits =
          product(x.narrow(0, row, rows), matrix.narrow(0, column, columns).t());
      cap_logits(logits, softcap);
      add_logits(logits, targets.narrow(0, row, rows), column, part);
      if (kept) kept->push_back(logits);
    });
  });
  at::Tensor lse = sums.maxima, logarithms = sums.sums;
  return {lse.add_(logarithms.log_()), sums.picked};
}

void add_logit_gradients(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& targets,
                         const at::Tensor& lse, const at::Tensor& scale, double softcap,
                         const LogitGradients& gradients, const KeptLogits& kept) {
  const LogitTile tile(x.size(0), matrix.size(0), logit_bounds(!x.is_cpu()));
  auto next_kept = kept.begin();
  for_pieces(x.size(0), tile.rows, [&](int64_t row, int64_t rows) {
    const at::Tensor x_part = x.narrow(0, row, rows);
    // Many tiles of bf16 are summed in fp32.
    at::Tensor dx = gradients.dx.defined() ? gradients.dx.narrow(0, row, rows) : at::Tensor();
    const bool is_summed_wide = dx.defined() && tile.columns < matrix.size(0);
    at::Tensor sum = is_summed_wide ? wide(dx) : dx;
    for_pieces(matrix.size(0), tile.columns, [&](int64_t column, int64_t columns) {
      const at::Tensor part = matrix.narrow(0, column, columns);
      const at::Tensor d = kept.empty() ? product(x_part, part.t()) : *next_kept++;
      if (kept.empty()) cap_logits(d, softcap);
      capped_to_gradient(d, targets.narrow(0, row, rows), column, lse.narrow(0, row, rows), scale,
                         softcap);
      if (is_summed_wide)
        add_product(sum, d, part);
      else if (sum.defined())
        sum.add_(product(d, part));
      if (!gradients.dweight.defined()) return;
      at::Tensor dweight = gradients.dweight.narrow(0, column, columns);
      detail::add_outer_product(dweight, d, x_part);
    });
    if (is_summed_wide && !sum.is_same(dx)) dx.copy_(sum);
  });
}

}  // namespace zea
