// SPDX-License-Identifier: Apache-2.0
// Which nodes are sick, decided from what was measured alone, and all of it as text. A node is
// compared with the others of the job: what a link or a disk should give is what the median of the
// nodes gives.
#pragma once

#include <string>
#include <vector>

#include "preflight/measurements.hpp"

namespace zea {

/// Something of some nodes that somebody should know.
struct Finding {
  std::vector<std::string> nodes;  ///< empty: of the job as a whole
  std::string found;
  std::string remedy;
  bool is_sick = true;  ///< the run should not start; otherwise it may be slower, or another one
};

std::vector<Finding> judge(const Measurements& measured);
bool has_sick(const std::vector<Finding>& findings);

/// A line per node, what is expected, and the findings as sentences.
std::string report(const Measurements& measured, const std::vector<Finding>& findings);

}  // namespace zea
