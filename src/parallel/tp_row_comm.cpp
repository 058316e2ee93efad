// SPDX-License-Identifier: Apache-2.0
#include "parallel/tp_row_comm.hpp"

#include <numeric>

#include "core/error.hpp"
#include "kernels/matmul.hpp"
#include "layout/token_layout.hpp"

namespace zea::detail {
namespace {

int64_t sum_of(const RowsPerTpRank& shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

/// The rows of all ranks, in memory of their own.
Tensor all_rows(const TpRowComm& rows, const Tensor& x) {
  Tensor all = rows.gather(x.contiguous()).take();
  return rows.are_sharded() ? all.clone() : all;
}

Tensor summed(const TpRowComm& rows, const Tensor& x) {
  const Tensor partial = rows.partial(x.size(0), x.size(1), x.options());
  partial.copy_(x);
  return rows.sum(partial).take();
}

struct GatherRowsFunction : Function<GatherRowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const TpRowComm* rows) {
    remember_rows(ctx, *rows);
    return all_rows(*rows, x);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {summed(recall_rows(ctx), outputs[0]), {}};
  }
};

struct SumRowsFunction : Function<SumRowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const TpRowComm* rows) {
    remember_rows(ctx, *rows);
    return summed(*rows, x);
  }
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {all_rows(recall_rows(ctx), outputs[0]), {}};
  }
};

}  // namespace

at::Tensor tp_gathered_rows(const TpRowComm& rows, const at::Tensor& x) {
  return GatherRowsFunction::apply(x, &rows);
}

at::Tensor tp_summed_rows(const TpRowComm& rows, const at::Tensor& x) {
  return SumRowsFunction::apply(x, &rows);
}

at::Tensor InFlightRows::take() {
  pending_.wait();
  at::Tensor result = result_.defined() ? std::move(result_) : source_.clone();
  source_.reset();
  return result;
}

at::Tensor TpBuffers::take(Kind kind, int64_t rows, int64_t width,
                           const at::TensorOptions& options) {
  const int64_t bytes = rows * width * static_cast<int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || bytes == 0) return at::empty({rows, width}, options);
  Buffer& buffer = buffers_[static_cast<size_t>(kind)];
  if (buffer.bytes < bytes) {
    buffer = {};
    // The number of tokens is new in every step: some room, and it will not grow again soon.
    buffer.bytes = bytes + bytes / 4;
    buffer.memory = tp_->allocate(buffer.bytes);
  }
  return at::from_blob(
      buffer.memory.get(), {rows, width}, [kept = buffer.memory](void*) { (void)kept; }, options);
}

TpRowComm::TpRowComm(TpBuffers& buffers, RowsPerTpRank shares)
    : buffers_(&buffers), shares_(std::move(shares)) {
  ZEA_ASSERT(shares_.empty() || static_cast<int>(shares_.size()) == tp().size());
  if (are_sharded()) travelling_ = travelling_rows(shares_);
}

Counts TpRowComm::counts(int64_t width) const {
  Counts elements;
  for (int64_t rows : travelling_) elements.push_back(rows * width);
  return elements;
}

InFlightRows TpRowComm::gather(const at::Tensor& x) const {
  if (!are_sharded()) return {{}, x, {}};
  const int rank = tp().rank();
  ZEA_ASSERT(x.size(0) == shares_[rank]);
  const int64_t width = x.size(1);
  const at::Tensor all =
      buffers_->take(TpBuffers::Kind::Gathered, sum_of(travelling_), width, x.options());
  if (all.numel() == 0) return {{}, all, {}};
  const int64_t before = sum_of({travelling_.begin(), travelling_.begin() + rank});
  const at::Tensor here = all.narrow(0, before, travelling_[rank]);
  here.narrow(0, 0, shares_[rank]).copy_(x);
  Pending pending =
      tp().all_gather(here.const_data_ptr(), all.mutable_data_ptr(), counts(width), dtype_of(x));
  return {{}, all.narrow(0, 0, sum_of(shares_)), std::move(pending)};
}

at::Tensor TpRowComm::partial(int64_t rows, int64_t width, const at::TensorOptions& options) const {
  ZEA_ASSERT(!are_sharded() || rows == sum_of(shares_));
  const auto take = [&](int64_t room) {
    return buffers_->take(TpBuffers::Kind::Partial, room, width, options);
  };
  return are_sharded() ? take(sum_of(travelling_)).narrow(0, 0, rows) : take(rows);
}

InFlightRows TpRowComm::sum(const at::Tensor& partial) const {
  const DType dtype = dtype_of(partial);
  if (!are_sharded()) {
    if (partial.numel() == 0) return {{}, partial, {}};
    Pending pending =
        tp().all_reduce(partial.mutable_data_ptr(), partial.numel(), dtype, ReduceOp::Sum);
    // On a device partial() allocates memory that nothing else uses.
    if (!partial.device().is_cpu()) return {{}, partial, std::move(pending)};
    return {partial, {}, std::move(pending)};
  }
  const int64_t width = partial.size(1);
  const auto rank = static_cast<size_t>(tp().rank());
  const at::Tensor result = at::empty({travelling_[rank], width}, partial.options());
  if (partial.numel() == 0) return {{}, result, {}};
  Pending pending = tp().reduce_scatter(partial.const_data_ptr(), result.mutable_data_ptr(),
                                        counts(width), dtype);
  // Detached: what an autograd function returns is to be no view.
  return {partial, result.narrow(0, 0, shares_[rank]).detach(), std::move(pending)};
}

ArrivingRows LinearRows::summed_product(const at::Tensor& a, const at::Tensor& b) const {
  const at::Tensor partial = rows_.partial(a.size(0), b.size(1), a.options());
  product_into(partial, a, b);
  return arriving(rows_.sum(partial));
}

}  // namespace zea::detail
