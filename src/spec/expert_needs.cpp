// SPDX-License-Identifier: Apache-2.0
#include "spec/expert_needs.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea::detail {
namespace {

constexpr auto kIndex = static_cast<int64_t>(sizeof(int64_t));

/// The rows of the first of two exchanges, those of `rows` tokens of each cp rank at most; without
/// a second one 0.
int64_t rows_between(const MixturePart& part, int64_t rows) {
  const bool are_two = part.exchanges && part.ep_cp > 1 && part.ep_cp < part.token_ranks();
  return are_two ? rows * part.ep_cp : 0;
}

void declare_gathered(const MixturePart& part, int64_t rows, OperationNeeds& needs) {
  const int64_t chosen = part.router.chosen;
  needs.is_view = part.token_ranks() == 1;
  needs.messages = {{MessageKind::GatherRouting, SentIn::Forward, chosen},
                    {MessageKind::GatherExpertRows, SentIn::Forward, part.hidden},
                    {MessageKind::SumGates, SentIn::Backward, chosen},
                    {MessageKind::SumExpertRows, SentIn::Backward, part.hidden}};
  if (needs.is_view) return;
  needs.rows = part.sizes.expert_tokens > 0 ? part.sizes.expert_tokens : rows * part.token_ranks();
  const int64_t row = part.hidden * part.bytes.param, routing = chosen * (part.bytes.wide + kIndex);
  // An all-to-all saves the row of each token on each rank, and the token of each row.
  const int64_t indices = part.exchanges ? 2 * kIndex : 0;
  const int64_t between = rows_between(part, rows) * row;
  needs.memory = {.output = needs.rows * row,
                  .saved = needs.rows * (routing + indices),
                  .forward_peak = needs.rows * (2 * row + routing) + between,
                  .gradient_working = needs.rows * row + between};
}

void declare_summed(const MixturePart& part, int64_t rows, OperationNeeds& needs) {
  needs.is_view = part.token_ranks() == 1;
  needs.messages = {{MessageKind::SumExpertRows, SentIn::Forward, part.hidden},
                    {MessageKind::GatherExpertRows, SentIn::Backward, part.hidden}};
  if (needs.is_view) return;
  needs.rows = part.sizes.tokens.all;
  const int64_t row = part.hidden * part.bytes.param;
  const int64_t between = rows_between(part, needs.rows) * row;
  needs.memory = {.output = needs.rows * row,
                  .forward_peak = (needs.rows + rows) * row + between,
                  .gradient_working = rows * row + between};
}

}  // namespace

FunctionMemory wide_linear_memory(int64_t rows, const WeightSpec& weight, bool bias_trains,
                                  const ElementBytes& bytes) {
  FunctionMemory f = linear_memory(rows, weight, bias_trains, bytes);
  if (!bytes.is_narrow()) return f;
  const int64_t rounded = f.output;  // the gradient of outputs
  f.output = rows * weight.out * bytes.wide;
  f.forward_peak += f.output - rounded;
  f.backward_working += rounded;
  f.gradient_working += rounded;
  if (bytes.on_device) return f;
  // CPUs convert the operands to fp32, since their library rounds products of bf16.
  const int64_t converted = (rows + weight.out) * weight.in * bytes.wide;
  f.forward_peak = std::max(f.forward_peak, f.output + converted);
  f.scratch = std::max(f.scratch, converted);
  return f;
}

double chosen_share(const RouterSpec& router, int64_t parts) {
  double none = 1;  // probability that a token chooses no expert of the part
  for (int64_t i = 0; i < router.chosen; ++i)
    none *= static_cast<double>(std::max<int64_t>(0, router.experts - router.experts / parts - i)) /
            static_cast<double>(router.experts - i);
  return 1 - none;
}

double chosen_share(const ModelSpec& model, int64_t parts) {
  double share = 0;
  for (const MlpSpec& mlp : model.decoder.block.mlps)
    if (mlp.router) share = std::max(share, chosen_share(*mlp.router, parts));
  return share;
}

double dispatch_ratio(const ModelSpec& model, int64_t ep_cp, int64_t ep_dp_shard, int64_t ep_tp) {
  const int64_t ranks = ep_cp * ep_dp_shard;
  const double along_cp = static_cast<double>(ep_cp - 1) * chosen_share(model, ep_cp * ep_tp);
  const double along_dp =
      static_cast<double>((ep_dp_shard - 1) * ep_cp) * chosen_share(model, ranks * ep_tp);
  return (along_cp + along_dp) / static_cast<double>(ranks - 1);
}

LocalExperts MixturePart::local_experts() const {
  const int64_t count = router.experts / ep;
  return {count, std::min(router.chosen, count)};
}

int64_t MixturePart::usual_rows(int64_t most) const {
  return most * router.chosen / (local_experts().copies * ep);
}

void declare_mixture(OperationKind kind, const MixturePart& part, int64_t rows, int64_t bytes,
                     OperationNeeds& needs) {
  const LocalExperts here = part.local_experts();
  const int64_t chosen = part.router.chosen;
  switch (kind) {
    case OperationKind::Route:
      needs.memory = route_memory(rows, part.router, part.bytes);
      return;
    case OperationKind::GatherExpertRows:
      return declare_gathered(part, rows, needs);
    case OperationKind::SumExpertRows:
      return declare_summed(part, rows, needs);
    case OperationKind::Dispatch:
      needs.rows = rows * here.copies;
      needs.elements = part.usual_rows(needs.rows) * part.hidden;
      needs.memory = {.output = here.copies * bytes,
                      .saved = (rows * chosen + here.count) * kIndex};
      return;
    case OperationKind::Combine:
      needs.rows = rows / here.copies;
      needs.elements = part.usual_rows(rows) * part.hidden;
      needs.memory = {.output = bytes / here.copies,
                      .saved = needs.rows * chosen * part.bytes.wide,
                      .saves_input = true};
      return;
    default:
      throw InternalError("an operation that is none of a mixture");
  }
}

}  // namespace zea::detail
