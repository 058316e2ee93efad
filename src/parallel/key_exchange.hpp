// SPDX-License-Identifier: Apache-2.0
// Attention of a group's queries to the keys of all groups of the outer group: to its own ones
// only, to all of them gathered at once, or to one group's after the other's as they are passed
// around.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "model/context_part.hpp"
#include "model/slice_attention.hpp"

namespace zea::detail {

/// One call's tensors: q (tokens, heads, dim), and kv (tokens, 2 kv_heads, dim), keys first, in the
/// type that travels; contiguous where keys are passed.
struct GroupInputs {
  at::Tensor q, kv;
  ScoreSpec scores;
};

/// dq, and dkv of the own group's tokens, to be written: of q's type, fp32 for bf16 where keys are
/// passed.
struct GroupGradients {
  at::Tensor dq, dkv;
};

/// A tensor on its way to other ranks, and what comes for it.
class TravellingTensor {
 public:
  TravellingTensor() = default;
  /// `sent`: of what goes, where that is not waited for with what comes.
  TravellingTensor(at::Tensor going, at::Tensor coming, Pending received, Pending sent = {})
      : going_(std::move(going)),
        coming_(std::move(coming)),
        received_(std::move(received)),
        sent_(std::move(sent)) {}

  /// What has come. Waits for that alone; to be called once.
  at::Tensor arrive() {
    received_.wait();
    return std::move(coming_);
  }
  /// Waits until the others have what goes, and lets go of it.
  void finish() {
    sent_.wait();
    going_.reset();
  }
  at::Tensor take() {
    at::Tensor come = arrive();
    finish();
    return come;
  }

 private:
  at::Tensor going_, coming_;
  Pending received_, sent_;  ///< die first: they use both
};

/// Keys of the outer group's members gathered, in order of member: some heads' at a time, the next
/// ones' while these are used. On the host each member fetches what it needs when it needs it, and
/// waits for nobody's fetching; on devices these are collectives.
class GatheredKeys {
 public:
  GatheredKeys(const ContextPart& part, Collectives& outer) : part_(part), outer_(outer) {}

  AttentionSums attend(const GroupInputs& in) const;
  void write_gradients(const GroupGradients& gradients, const GroupInputs& in,
                       const at::Tensor& dout, const AttentionSums& sums) const;

 private:
  /// As many heads as travel together, of those of `kv`.
  int64_t heads_at_once(const at::Tensor& kv) const;
  /// kv of the KV heads from `first` on.
  TravellingTensor gather(const at::Tensor& kv, int64_t first, int64_t heads) const;
  /// dkv of all tokens goes to its owners; what comes, (parts, own tokens, ...), adds up.
  TravellingTensor return_gradient(at::Tensor dkv) const;

  const ContextPart& part_;
  Collectives& outer_;
};

/// Keys passed from each member to the next: the next hop's travel while this one's are used. A
/// member waits for what it needs; that the next one has what was sent, a hop later only, so that
/// hops of unequal work even out over a call.
class PassedKeys {
 public:
  PassedKeys(const ContextPart& part, Collectives& outer) : part_(part), outer_(outer) {}

  AttentionSums attend(const GroupInputs& in) const;
  /// The gradients of other members' keys travel behind the keys, and arrive at their owner last.
  void write_gradients(const GroupGradients& gradients, const GroupInputs& in,
                       const at::Tensor& dout, const AttentionSums& sums) const;

 private:
  /// Whose keys are here at a hop.
  int owner(int hop) const { return (outer_.rank() - hop + outer_.size()) % outer_.size(); }
  bool is_last(int hop) const { return hop + 1 == outer_.size(); }
  /// What is here at `hop` goes to the next member; what comes is the next hop's.
  TravellingTensor pass(const at::Tensor& here, int hop) const;

  const ContextPart& part_;
  Collectives& outer_;
};

/// Inputs of attention to the keys of `kv`.
AttentionInputs with_keys(const at::Tensor& q, const at::Tensor& kv, const ScoreSpec& scores);
AttentionGradients with_keys(const GroupGradients& gradients, const at::Tensor& dkv);

}  // namespace zea::detail
