// SPDX-License-Identifier: Apache-2.0
#include "parallel/member_rows.hpp"

#include <numeric>

#include "core/error.hpp"
#include "parallel/tensor_rows.hpp"

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
