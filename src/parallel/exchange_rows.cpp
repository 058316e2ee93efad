// SPDX-License-Identifier: Apache-2.0
#include "parallel/exchange_rows.hpp"

#include "core/error.hpp"
#include "parallel/sharded_buffer.hpp"

namespace zea {

Counts elements_of(Counts rows, int64_t width) {
  for (int64_t& count : rows) count *= width;
  return rows;
}

at::Tensor placed_rows(const at::Tensor& received, const at::Tensor& received_rows, int64_t rows) {
  const std::vector<int64_t> shape{rows, received.size(1)};
  if (received.size(0) == rows)
    return at::empty(shape, received.options()).index_copy_(0, received_rows, received);
  return at::zeros(shape, received.options()).index_add_(0, received_rows, received);
}

at::Tensor exchange_rows(Collectives& ranks, const at::Tensor& held, const RowTransfer& transfer,
                         const RowFormat& format) {
  const auto options = at::TensorOptions().dtype(to_torch(format.dtype)).device(format.device);
  ZEA_ASSERT(held.defined() || transfer.sent_rows.numel() == 0);
  const at::Tensor sent = held.defined() ? held.index_select(0, transfer.sent_rows)
                                         : at::empty({0, format.width}, options);
  // A group of one rank has the host's collectives, which know no device.
  if (ranks.size() == 1) return placed_rows(sent, transfer.received_rows, transfer.needed);
  const at::Tensor received = at::empty({transfer.received_rows.numel(), format.width}, options);
  ranks
      .all_to_all(sent.const_data_ptr(), elements_of(transfer.sent_counts, format.width),
                  received.data_ptr(), elements_of(transfer.received_counts, format.width),
                  format.dtype)
      .wait();
  return placed_rows(received, transfer.received_rows, transfer.needed);
}

}  // namespace zea
