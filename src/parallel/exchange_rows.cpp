// SPDX-License-Identifier: Apache-2.0
#include "parallel/exchange_rows.hpp"

#include <numeric>

#include "core/error.hpp"
#include "parallel/torch_dtype.hpp"

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

namespace zea::detail {
namespace {

Message message_of(const at::Tensor& x, int peer) {
  ZEA_ASSERT(x.is_contiguous());
  return {x.mutable_data_ptr(), x.numel(), dtype_of(x), peer};
}

}  // namespace

at::Tensor rows_of_member(const at::Tensor& x, const Counts& rows, int member) {
  const auto first = rows.begin(), own = first + member;
  return x.narrow(0, std::accumulate(first, own, int64_t{0}), *own);
}

std::vector<Message> rows_of_others(const at::Tensor& x, const Counts& rows,
                                    const Collectives& group) {
  std::vector<Message> messages;
  for (int member = 0; member < group.size(); ++member)
    if (member != group.rank() && rows[member] > 0)
      messages.push_back(message_of(rows_of_member(x, rows, member), member));
  return messages;
}

std::vector<Message> parts_of_others(const at::Tensor& x, const Collectives& group) {
  std::vector<Message> messages;
  for (int member = 0; member < group.size() && x.numel() > 0; ++member)
    if (member != group.rank()) messages.push_back(message_of(x[member], member));
  return messages;
}

}  // namespace zea::detail
