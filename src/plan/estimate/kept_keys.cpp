// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/estimate/kept_keys.hpp"

#include <algorithm>
#include <cstdio>

namespace zea {

int64_t key_bytes_per_token(const Plan& plan, int world_rank) {
  if (!plan.mesh.has(world_rank, kDecoder)) return 0;
  const HeadShape heads = plan.model.heads(kDecoder);
  const int64_t here = std::max<int64_t>(1, heads.key_value / plan.mesh.grid(kDecoder).tp);
  int64_t blocks = 0;
  for (size_t u = 0; u < plan.model.units.size(); ++u)
    blocks += plan.model.units[u].module == kDecoder &&
              plan.model.units[u].kind == UnitKind::Block &&
              plan.pipeline.place_of_unit(static_cast<int>(u)) == plan.place_of(world_rank);
  const auto element = static_cast<int64_t>(element_bytes(plan.precision.param));
  return blocks * 2 * here * heads.dim * element;
}

std::string describe_kept_keys(const Plan& plan) {
  const int64_t generated = plan.options.eval.generate_tokens;
  if (generated == 0) return "";
  int64_t bytes = 0;
  for (int rank = 0; rank < plan.mesh.ranks_per_replica(); ++rank)
    bytes = std::max(bytes, key_bytes_per_token(plan, rank));
  const int64_t replicas = plan.mesh.replicas();
  const int64_t samples = (plan.options.schedule.global_batch + replicas - 1) / replicas;
  const int64_t tokens = plan.options.data.row_tokens / plan.mesh.grid(kDecoder).cp + generated;
  char text[200];
  std::snprintf(
      text, sizeof text,
      "keys that generation keeps: %.1f KiB a token and rank, so at most %.1f MiB for %ld "
      "samples of %ld tokens\n",
      static_cast<double>(bytes) / 1024, static_cast<double>(bytes * samples * tokens) / (1 << 20),
      static_cast<long>(samples), static_cast<long>(tokens));
  return text;
}

}  // namespace zea
