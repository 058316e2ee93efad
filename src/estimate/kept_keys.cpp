// SPDX-License-Identifier: Apache-2.0
#include "estimate/kept_keys.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/text.hpp"

namespace zea {
namespace {

/// Of a replica, of those that are evaluated together.
int64_t kept_samples(const Plan& plan) {
  const int64_t replicas = plan.mesh.replicas(), most = plan.options.eval.samples;
  const int64_t batch = plan.options.schedule.global_batch;
  return ((most > 0 ? std::min(batch, most) : batch) + replicas - 1) / replicas;
}

/// Of a sample, on each cp rank.
int64_t kept_tokens(const Plan& plan) {
  return plan.options.data.row_tokens / plan.mesh.grid(kDecoder).cp +
         plan.options.eval.generate_tokens;
}

std::string describe_ends(const Plan& plan) {
  const EvalOptions& eval = plan.options.eval;
  const std::vector<int64_t> asked{eval.stop_tokens.begin(), eval.stop_tokens.end()};
  std::string text = "generated texts end at ";
  for (const std::string& stop : eval.stop_texts) text += nlohmann::json(stop).dump() + ", ";
  text += "token";
  const std::vector<int64_t>& tokens = asked.empty() ? plan.model.decoder.end_tokens : asked;
  for (const int64_t token : tokens) text += " " + std::to_string(token);
  return text + (asked.empty() ? " (the model's eos_token_id)" : " (eval.stop_tokens)") + "\n";
}

}  // namespace

int64_t key_bytes_per_token(const Plan& plan, int world_rank) {
  if (!plan.mesh.has(world_rank, kDecoder)) return 0;
  const HeadShape heads = plan.model.heads(kDecoder);
  const int64_t here = std::max<int64_t>(1, heads.key_value / plan.mesh.grid(kDecoder).tp);
  int64_t blocks = 0;
  for (size_t u = 0; u < plan.model.units.size(); ++u)
    blocks += plan.model.units[u].module == kDecoder &&
              plan.model.units[u].kind == UnitKind::Block &&
              plan.pipeline.group_of_unit(static_cast<int>(u)) == plan.group_of(world_rank);
  const auto element = static_cast<int64_t>(element_bytes(plan.precision.param));
  return blocks * 2 * here * heads.dim * element;
}

int64_t kept_key_bytes(const Plan& plan, int world_rank) {
  return key_bytes_per_token(plan, world_rank) * kept_samples(plan) * kept_tokens(plan);
}

std::string describe_generation(const Plan& plan) {
  if (!plan.generates()) return "";
  int64_t bytes = 0;
  for (int rank = 0; rank < plan.mesh.ranks_per_replica(); ++rank)
    bytes = std::max(bytes, key_bytes_per_token(plan, rank));
  const int64_t samples = kept_samples(plan), tokens = kept_tokens(plan);
  return formatted(
             "keys that generation keeps: %.1f KiB a token and rank, so at most %.1f MiB for %ld "
             "samples of %ld tokens\n",
             static_cast<double>(bytes) / 1024,
             static_cast<double>(bytes * samples * tokens) / (1 << 20), static_cast<long>(samples),
             static_cast<long>(tokens)) +
         describe_ends(plan) +
         (plan.world_size() > 1
              ? "what generation sends is not predicted; a training step's bytes are\n"
              : "");
}

}  // namespace zea
