// SPDX-License-Identifier: Apache-2.0
#include "spec/attention_needs.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

FunctionMemory memory_of(const HeadsPart& part) {
  HeadShape heads = part.heads();
  const UnitShare& share = part.share;
  const int64_t rows = part.sizes.all_tokens;
  if (share.cp == 1)
    return attention_here_memory(part.model, part.unit, part.sizes.attention, rows, heads,
                                 part.bytes);
  const int64_t own = (rows + share.cp - 1) / share.cp, group = own * share.cp_inner;
  const bool is_all = share.cp == share.cp_inner;
  heads.query /= share.cp_inner;
  heads.key_value = std::max<int64_t>(1, heads.key_value / share.cp_inner);
  const int64_t keys = is_all ? 0 : share.gathers_kv ? rows : group;
  return context_attention_memory({own, group, keys, !is_all && !share.gathers_kv}, heads,
                                  part.bytes);
}

}  // namespace

HeadShape HeadsPart::heads() const {
  const HeadShape& all = spec().heads;
  return {all.query / share.tp, std::max<int64_t>(1, all.key_value / share.tp), all.dim};
}

void declare_attention(const HeadsPart& part, bool has_sinks, OperationNeeds& needs) {
  const HeadShape& all = part.spec().heads;
  needs.per_pair = all.query * all.dim;
  needs.messages = {{MessageKind::Attention, SentIn::Forward},
                    {MessageKind::Attention, SentIn::Backward}};
  needs.memory = memory_of(part);
  if (!has_sinks) return;
  // They scale outputs in place, by their log-sum-exps.
  needs.elements = needs.rows * all.query * all.dim;
  const int64_t factors = 2 * needs.rows * part.heads().query * part.bytes.wide;
  needs.memory.forward_peak += factors;
  needs.memory.backward_working += factors;
}

void declare_copied_heads(const HeadsPart& part, OperationKind kind, OperationNeeds& needs) {
  const bool are_all = kind == OperationKind::LatentHeads;
  const int64_t of_head = are_all ? 3 * part.spec().heads.dim : part.spec().value_dim();
  needs.memory.output = needs.rows * part.heads().query * of_head * part.bytes.param;
  needs.elements = needs.memory.output / part.bytes.param;
}

}  // namespace zea::detail
