// SPDX-License-Identifier: Apache-2.0
// Layouts of a language model with experts, which tests compare with one rank.
#pragma once

#include "support/tiny_run.hpp"

namespace zea::testing {

/// The encoder has tp x cp ranks without experts.
struct ExpertLayout {
  const char* name;
  int ranks;
  int64_t ep = 1;
  const char* strategy = "full_shard";
  int64_t tp = 1, cp = 1;
  int64_t dp_replicate = 1;
  const char* cp_mode = "ring";
  bool sequence_parallel = true;
  const char* dispatch = "allgather";
  int64_t etp = 0;
  int64_t subgroup = 0;  ///< ranks of `reshard_after_forward`
  int64_t pp = 1;
};

/// Returns the same layout, in which tokens go only to the ranks of their experts.
constexpr ExpertLayout exchanging(ExpertLayout layout) {
  layout.dispatch = "alltoall";
  return layout;
}

/// Returns the same layout, with whole experts on each tp rank.
constexpr ExpertLayout over_tp(ExpertLayout layout) {
  layout.etp = 1;
  return layout;
}

TinyRunOptions on_layout(TinyRunOptions run, const ExpertLayout& layout);

/// Routers of zeros score all experts alike, and ties go to the lower index: all tokens of the
/// first step choose the same experts.
void zero_routers(Engine& engine);

}  // namespace zea::testing
