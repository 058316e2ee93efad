// SPDX-License-Identifier: Apache-2.0
#include "parallel/tp_row_comm.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "kernels/matmul.hpp"
#include "layout/token_layout.hpp"

namespace zea::detail {
namespace {

int64_t sum_of(const RowsPerTpRank& shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

Counts times(const Counts& rows, int64_t width) {
  Counts elements;
  for (const int64_t count : rows) elements.push_back(count * width);
  return elements;
}

/// Returns a view of rows of x from `first` on: (ranks, rows, width).
Tensor parts_of(const Tensor& x, int64_t first, int64_t stride, const RowChunk::Parts& parts) {
  if (parts.rows == 0) return x.new_empty({0, 0, x.size(1)});
  return x.as_strided({parts.ranks, parts.rows, x.size(1)},
                      {stride * x.stride(0), x.stride(0), x.stride(1)},
                      x.storage_offset() + first * x.stride(0));
}

Tensor among_all(const Tensor& x, const RowChunk::Parts& parts) {
  return parts_of(x, parts.among_all, parts.stride, parts);
}

Tensor among_chunks(const Tensor& x, const RowChunk::Parts& parts) {
  return parts_of(x, parts.in_chunks, parts.rows, parts);
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
  for (Pending& chunk : chunks_) chunk.wait();
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
  return times(travelling_, width);
}

InFlightRows TpRowComm::gather(const at::Tensor& x) const {
  if (!are_sharded()) return {{}, x};
  const int rank = tp().rank();
  ZEA_ASSERT(x.size(0) == shares_[rank]);
  const int64_t width = x.size(1);
  const at::Tensor all =
      buffers_->take(TpBuffers::Kind::Gathered, sum_of(travelling_), width, x.options());
  if (all.numel() == 0) return {{}, all};
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
    if (partial.numel() == 0) return {{}, partial};
    Pending pending =
        tp().all_reduce(partial.mutable_data_ptr(), partial.numel(), dtype, ReduceOp::Sum);
    // On a device partial() allocates memory that nothing else uses.
    if (!partial.device().is_cpu()) return {{}, partial, std::move(pending)};
    return {partial, {}, std::move(pending)};
  }
  const int64_t width = partial.size(1);
  const auto rank = static_cast<size_t>(tp().rank());
  const at::Tensor result = at::empty({travelling_[rank], width}, partial.options());
  if (partial.numel() == 0) return {{}, result};
  Pending pending = tp().reduce_scatter(partial.const_data_ptr(), result.mutable_data_ptr(),
                                        counts(width), dtype);
  // Detached: what an autograd function returns is to be no view.
  return {partial, result.narrow(0, 0, shares_[rank]).detach(), std::move(pending)};
}

int TpRowComm::sharded_chunks(const RowChunks& chunks, int64_t width) const {
  return are_sharded() ? chunks.of(sum_of(shares_), width) : 1;
}

std::vector<RowChunk> TpRowComm::chunks(int count) const {
  const int64_t all = sum_of(shares_);
  std::vector<RowChunk> chunks;
  int64_t in_chunks = 0;
  for (int number = 0; number < count; ++number) {
    RowChunk chunk{
        .begin = in_chunks,
        .own = chunk_of_rows(travelling_[static_cast<size_t>(tp().rank())], number, count)};
    int64_t before = 0;
    for (const int64_t travelling : travelling_) {
      const TokenRange part = chunk_of_rows(travelling, number, count);
      const int64_t first = before + part.begin;
      const int64_t rows = std::clamp<int64_t>(all - first, 0, part.length());
      const bool follows = !chunk.parts.empty() && travelling == travelling_.front() &&
                           chunk.parts.back().rows == rows && rows == part.length() &&
                           chunk.parts.back().stride == travelling;
      if (follows)
        ++chunk.parts.back().ranks;
      else
        chunk.parts.push_back({first, travelling, in_chunks, 1, rows});
      chunk.travelling.push_back(part.length());
      in_chunks += part.length();
      before += travelling;
    }
    if (in_chunks > chunk.begin) chunks.push_back(std::move(chunk));
  }
  return chunks;
}

ArrivingProduct TpRowComm::gather_to_multiply(const at::Tensor& x, int count) const {
  const int64_t width = x.size(1);
  const at::Tensor all =
      buffers_->take(TpBuffers::Kind::Gathered, sum_of(travelling_), width, x.options());
  const auto pending = std::make_shared<std::vector<Pending>>();
  std::vector<RowChunk> chunks = this->chunks(count);
  for (const RowChunk& chunk : chunks) {
    const auto own_before = chunk.travelling.begin() + tp().rank();
    const at::Tensor here = all.narrow(
        0, chunk.begin + sum_of({chunk.travelling.begin(), own_before}), chunk.own.length());
    const int64_t rows = std::clamp<int64_t>(x.size(0) - chunk.own.begin, 0, chunk.own.length());
    if (rows > 0) here.narrow(0, 0, rows).copy_(x.narrow(0, chunk.own.begin, rows));
    if (const int64_t filling = here.size(0) - rows; filling > 0)
      here.narrow(0, rows, filling).zero_();  // padding rows enter weight gradients
    pending->push_back(tp().all_gather(here.const_data_ptr(),
                                       all.narrow(0, chunk.begin, 1).mutable_data_ptr(),
                                       times(chunk.travelling, width), dtype_of(x)));
  }
  return [rows = sum_of(shares_), all, pending, count, chunks = std::move(chunks)](
             const at::Tensor& b, const at::Tensor& bias) {
    const at::Tensor y = at::empty({rows, b.size(1)}, all.options());
    auto next = pending->begin();
    for (const RowChunk& chunk : chunks) {
      (next++)->wait();
      for (const RowChunk::Parts& parts : chunk.parts)
        products_into(among_all(y, parts), among_chunks(all, parts), b);
    }
    if (bias.defined()) y.add_(bias);
    return GatheredProduct{y, all, count};
  };
}

at::Tensor TpRowComm::in_chunks(const at::Tensor& x, int count) const {
  const int64_t travelling = sum_of(travelling_);
  const at::Tensor ordered = travelling == x.size(0)
                                 ? at::empty({travelling, x.size(1)}, x.options())
                                 : at::zeros({travelling, x.size(1)}, x.options());
  for (const RowChunk& chunk : chunks(count))
    for (const RowChunk::Parts& parts : chunk.parts)
      among_chunks(ordered, parts).copy_(among_all(x, parts));
  return ordered;
}

InFlightRows TpRowComm::summed_product(const at::Tensor& a, const at::Tensor& b, int count) const {
  const int64_t width = b.size(1);
  const DType dtype = dtype_of(a);
  std::vector<Pending> pending;
  if (!are_sharded()) {
    const at::Tensor sums = partial(a.size(0), width, a.options());
    for (int number = 0; number < count; ++number) {
      const TokenRange rows = chunk_of_rows(a.size(0), number, count);
      if (rows.length() == 0) continue;
      const at::Tensor chunk = sums.narrow(0, rows.begin, rows.length());
      product_into(chunk, a.narrow(0, rows.begin, rows.length()), b);
      pending.push_back(
          tp().all_reduce(chunk.mutable_data_ptr(), chunk.numel(), dtype, ReduceOp::Sum));
    }
    if (a.is_cpu()) return {sums, {}, std::move(pending)};
    return {{}, sums, std::move(pending)};
  }
  const auto rank = static_cast<size_t>(tp().rank());
  const at::Tensor sums =
      buffers_->take(TpBuffers::Kind::Partial, sum_of(travelling_), width, a.options());
  const at::Tensor result = at::empty({travelling_[rank], width}, a.options());
  for (const RowChunk& chunk : chunks(count)) {
    for (const RowChunk::Parts& parts : chunk.parts)
      products_into(among_chunks(sums, parts), among_all(a, parts), b);
    pending.push_back(tp().reduce_scatter(
        sums.narrow(0, chunk.begin, 1).const_data_ptr(),
        result.narrow(0, chunk.own.begin, chunk.own.length()).mutable_data_ptr(),
        times(chunk.travelling, width), dtype));
  }
  return {sums, result.narrow(0, 0, shares_[rank]).detach(), std::move(pending)};
}

ArrivingProduct LinearRows::gather_to_multiply(const at::Tensor& x) const {
  if (const int count = rows_.sharded_chunks(chunks_, x.size(1)); count > 1)
    return rows_.gather_to_multiply(x, count);
  return [coming = gather(x)](const at::Tensor& b, const at::Tensor& bias) {
    const at::Tensor rows = coming();
    return GatheredProduct{bias.defined() ? biased_product(bias, rows, b) : product(rows, b), rows};
  };
}

ArrivingRows LinearRows::summed_product(const at::Tensor& a, const at::Tensor& b) const {
  if (const int count = chunks_.of(a.size(0), b.size(1)); count > 1)
    return arriving(rows_.summed_product(a, b, count));
  const at::Tensor partial = rows_.partial(a.size(0), b.size(1), a.options());
  product_into(partial, a, b);
  return arriving(rows_.sum(partial));
}

}  // namespace zea::detail
