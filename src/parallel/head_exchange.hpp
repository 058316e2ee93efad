// SPDX-License-Identifier: Apache-2.0
// The members of an inner group exchange tokens for heads: before, each has some tokens of all
// heads; then all of the group's tokens, ascending in the row, of some heads.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <functional>

#include "comm/collectives.hpp"
#include "model/context_part.hpp"

namespace zea::detail {

class HeadExchange {
 public:
  /// `inner` null: a group of one, where everything stays as it is.
  HeadExchange(const ContextPart& part, int64_t heads, int64_t kv_heads, Collectives* inner);

  /// Heads of this member.
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }

  /// qkv (own tokens, all heads, dim) -> (group's tokens, heads() + 2 kv_heads(), dim).
  at::Tensor inputs_to_heads(const at::Tensor& qkv) const;
  /// Its gradient.
  at::Tensor inputs_to_tokens(const at::Tensor& dqkv) const;
  /// Outputs (group's tokens, heads(), dim) -> (own tokens, all query heads, dim).
  at::Tensor outputs_to_tokens(const at::Tensor& out) const;
  /// Its gradient.
  at::Tensor outputs_to_heads(const at::Tensor& dout) const;

 private:
  /// Heads of qkv, and where they stand among those that a member attends with.
  struct HeadRun {
    int64_t first, count, place;
  };
  /// Queries, keys and values of a member.
  std::array<HeadRun, 3> runs_of(int64_t member) const;
  /// Writes, or reads, the part (own tokens, heads, dim) that goes to, or came from, a member.
  using OfMember = std::function<void(int64_t member, const at::Tensor& part)>;
  /// Parts of `heads` each -> (group's tokens, heads, dim), of type and dim as in `like`.
  at::Tensor to_heads(const at::Tensor& like, int64_t heads, const OfMember& write) const;
  /// x (group's tokens, heads, dim) -> parts.
  void to_tokens(const at::Tensor& x, const OfMember& read) const;

  const ContextPart& part_;
  Collectives* inner_;
  int64_t all_heads_, all_kv_heads_;  ///< of qkv
  int64_t heads_, kv_heads_;
};

}  // namespace zea::detail
