// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_kernels.hpp"

#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::load;
using detail::Wide;

/// On the host, and with a sum of the type that the elements of x are computed in.
bool by_kernel(const at::Tensor& sum, const at::Tensor& x) {
  if (!sum.is_cpu() || !x.is_cpu() || !detail::runs_kernels(x)) return false;
  const bool is_bf16 = x.scalar_type() == at::kBFloat16;
  return sum.scalar_type() == (is_bf16 ? at::kFloat : x.scalar_type());
}

template <class T>
ZEA_WIDE_CLONES void add_run(const T* __restrict x, Wide<T>* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += load(x[i]);
}

template <class T>
void add_columns(const at::Tensor& sum, const at::Tensor& x) {
  const int64_t columns = x.size(1), step = rows_per_sum(columns);
  const detail::ChunkSums<Wide<T>> sums(detail::num_chunks(x.size(0), step), columns);
  detail::for_each_chunk(
      x.size(0),
      [&](int64_t chunk, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          add_run(elements<T>(x) + row * x.stride(0), sums.of_chunk(chunk), columns);
      },
      step);
  sums.add_to(sum, 0);
}

}  // namespace

void add_converted(const at::Tensor& sum, const at::Tensor& x) {
  // For one type libtorch sums in one pass.
  const bool converts = x.scalar_type() != sum.scalar_type();
  if (!converts || !by_kernel(sum, x) || !sum.is_contiguous() || !x.is_contiguous())
    return add_converted_reference(sum, x);
  ZEA_ASSERT(sum.sizes() == x.sizes());
  detail::with_element_type(x, [&]<class T>(T) {
    detail::for_each_chunk(x.numel(), [&](int64_t, int64_t begin, int64_t end) {
      add_run(elements<T>(x) + begin, elements<Wide<T>>(sum) + begin, end - begin);
    });
  });
}

void add_column_sums(const at::Tensor& sum, const at::Tensor& x) {
  if (!by_kernel(sum, x) || !sum.is_contiguous() || x.stride(1) != 1)
    return add_column_sums_reference(sum, x);
  ZEA_ASSERT(x.dim() == 2 && sum.numel() == x.size(1));
  detail::with_element_type(x, [&]<class T>(T) { add_columns<T>(sum, x); });
}

void add_converted_reference(const at::Tensor& sum, const at::Tensor& x) {
  at::Tensor target = sum;
  target.add_(x);
}

void add_column_sums_reference(const at::Tensor& sum, const at::Tensor& x) {
  at::Tensor target = sum;
  target.add_(x.sum(0, false, sum.scalar_type()));
}

}  // namespace zea
