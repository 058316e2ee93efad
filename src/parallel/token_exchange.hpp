// SPDX-License-Identifier: Apache-2.0
// The members of a group exchange tokens for columns (arXiv:2309.14509): before, each has some
// tokens with all columns; after, all of the group's tokens, ascending in the row, with some
// columns.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "comm/collectives.hpp"
#include "model/attention.hpp"

namespace zea::detail {

class TokenExchange {
 public:
  /// Both outlive it; the group has several members.
  TokenExchange(const ExchangedTokens& tokens, Collectives& group);

  int64_t own_tokens() const { return tokens_.tokens[group_.rank()]; }

  /// Writes, or reads, the part (own tokens, ...) that goes to, or came from, a member.
  using OfMember = std::function<void(int64_t member, const at::Tensor& part)>;
  /// Parts of rows of `shape` each -> (group's tokens, shape).
  at::Tensor to_group(at::IntArrayRef shape, const at::TensorOptions& options,
                      const OfMember& write) const;
  /// x (group's tokens, ...) -> parts.
  void to_tokens(const at::Tensor& x, const OfMember& read) const;

 private:
  const ExchangedTokens& tokens_;
  Collectives& group_;
};

}  // namespace zea::detail
