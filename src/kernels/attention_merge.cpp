// SPDX-License-Identifier: Apache-2.0
#include "kernels/tiled_attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>

#include "kernels/row_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

detail::StackStrides strides_of(const at::Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2), x.stride(3)};
}

const int64_t* rows_or_null(const at::Tensor& rows) {
  return rows.defined() ? rows.const_data_ptr<int64_t>() : nullptr;
}

}  // namespace

void merge_attention(const AttentionSums& sums, const AttentionPart& part) {
  if (!detail::runs_kernels(part.out)) return merge_attention_reference(sums, part);
  const int64_t dim = part.out.size(4), heads = part.out.size(2) * part.out.size(3);
  const int64_t rows =
      part.real.defined() ? part.real.size(0) : part.out.size(0) * part.out.size(1);
  ZEA_ASSERT(dim == 1 || (part.out.stride(4) == 1 && sums.out.stride(2) == 1));
  ZEA_ASSERT(sums.out.scalar_type() == sums.lse.scalar_type());
  const detail::MergePlaces places{
      rows_or_null(part.real), rows_or_null(part.rows), part.first_row, part.out.size(1), heads,
      part.out.size(3)};
  detail::with_element_type(part.out, [&]<class T>(T) {
    using detail::elements;
    using detail::Wide;
    ZEA_ASSERT(part.lse.scalar_type() == c10::CppTypeToScalarType<Wide<T>>::value);
    const detail::MergeHead<T> functor{.part = elements<T>(part.out),
                                       .part_lse = elements<Wide<T>>(part.lse),
                                       .out = elements<Wide<T>>(sums.out),
                                       .lse = elements<Wide<T>>(sums.lse),
                                       .of_part = strides_of(part.out),
                                       .of_part_lse = strides_of(part.lse),
                                       .out_row = sums.out.stride(0),
                                       .out_head = sums.out.stride(1),
                                       .lse_row = sums.lse.stride(0),
                                       .lse_head = sums.lse.stride(1),
                                       .places = places,
                                       .dim = dim};
    detail::run_items(part.out, functor, rows * heads, dim);
  });
}

void merge_attention_reference(const AttentionSums& sums, const AttentionPart& part) {
  const auto real = [&](const at::Tensor& x) {
    const at::Tensor all = x.flatten(2, 3).flatten(0, 1);
    return part.real.defined() ? all.index_select(0, part.real) : all;
  };
  const at::Tensor out = real(part.out), part_lse = real(part.lse);
  const auto own = [&](const at::Tensor& x) {
    return part.rows.defined() ? x.index_select(0, part.rows)
                               : x.narrow(0, part.first_row, out.size(0));
  };
  at::Tensor merged = own(sums.out), before = own(sums.lse);
  const at::Tensor lse = at::logaddexp(before, part_lse);
  const auto weight = [&](const at::Tensor& of) { return at::exp(of - lse).unsqueeze(-1); };
  merged.mul_(weight(before)).addcmul_(out, weight(part_lse));
  before.copy_(lse);
  if (!part.rows.defined()) return;
  sums.out.index_copy_(0, part.rows, merged);
  sums.lse.index_copy_(0, part.rows, before);
}

}  // namespace zea
