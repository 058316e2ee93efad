// SPDX-License-Identifier: Apache-2.0
// Steps on a layout, whose traffic is counted and worked out on paper.
#pragma once

#include <string>
#include <vector>

#include "support/tiny_run.hpp"

namespace zea::testing {

struct TrafficLayout {
  const char* name;
  int ranks;
  std::vector<std::string> sends;        ///< groups that must have sent something
  void (*refine)(TinyRunOptions&);       ///< of a LLaVA whose modules have one rank each
  std::vector<int> images = {1, 0, 2};   ///< of each sample
  std::vector<std::string> routed = {};  ///< groups whose bytes depend on routing: expected ones
};

/// Changes the options of vision and llm.
void each(TinyRunOptions& run, void (*change)(ModuleMeshOptions&));
void use_cp(TinyRunOptions& run, const char* mode, int64_t cp);

/// The bytes that the mesh counts in two steps are those of the formulas, group by group.
/// Collective over `world`, of which as many ranks as the layout has take part.
void expect_counted_traffic(const Communicator& world, const TrafficLayout& layout);

}  // namespace zea::testing
