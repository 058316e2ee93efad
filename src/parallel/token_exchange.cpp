// SPDX-License-Identifier: Apache-2.0
#include "parallel/token_exchange.hpp"

#include <numeric>

#include "core/error.hpp"
#include "parallel/exchange_rows.hpp"

namespace zea::detail {
namespace {

std::vector<int64_t> with_shape(std::initializer_list<int64_t> first, at::IntArrayRef shape) {
  std::vector<int64_t> all(first);
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

}  // namespace

TokenExchange::TokenExchange(const ExchangedTokens& tokens, Collectives& group)
    : tokens_(tokens), group_(group) {
  ZEA_ASSERT(std::ssize(tokens.tokens) == group.size() && group.size() > 1);
}

// The own part is written where it belongs, without a message.
at::Tensor TokenExchange::to_group(at::IntArrayRef shape, const at::TensorOptions& options,
                                   const OfMember& write) const {
  const Counts& rows = tokens_.tokens;
  const int64_t tokens = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const at::Tensor received = at::empty(with_shape({tokens}, shape), options);
  const at::Tensor sent = at::empty(with_shape({group_.size(), own_tokens()}, shape), options);
  for (int member = 0; member < group_.size(); ++member)
    if (member != group_.rank()) write(member, sent[member]);
  Pending pending =
      group_.exchange(parts_of_others(sent, group_), rows_of_others(received, rows, group_));
  write(group_.rank(), rows_of_member(received, rows, group_.rank()));
  pending.wait();
  if (tokens_.order.empty()) return received;
  return received.index_select(0, tokens_.order.on(received.device()));
}

void TokenExchange::to_tokens(const at::Tensor& x, const OfMember& read) const {
  const Counts& rows = tokens_.tokens;
  at::Tensor sent = x.contiguous();
  if (!tokens_.order.empty())
    sent = at::empty_like(sent).index_copy_(0, tokens_.order.on(x.device()), sent);
  const at::Tensor received =
      at::empty(with_shape({group_.size(), own_tokens()}, x.sizes().slice(1)), x.options());
  Pending pending =
      group_.exchange(rows_of_others(sent, rows, group_), parts_of_others(received, group_));
  read(group_.rank(), rows_of_member(sent, rows, group_.rank()));
  pending.wait();
  for (int member = 0; member < group_.size(); ++member)
    if (member != group_.rank()) read(member, received[member]);
}

}  // namespace zea::detail
