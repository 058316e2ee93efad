// SPDX-License-Identifier: Apache-2.0
// The health check of a job's nodes, from measurements alone, and its report as text. A node is
// compared with the others of the job: a link or a disk should be as fast as the median of the
// nodes.
#pragma once

#include <string>
#include <vector>

#include "preflight/measurements.hpp"

namespace zea {

/// Something that is wrong, or different, on some nodes.
struct Finding {
  std::vector<std::string> nodes;  ///< empty: the job as a whole
  std::string found;
  std::string remedy;
  bool is_sick = true;  ///< the run should not start; otherwise it may be slower, or another one
};

std::vector<Finding> check_health(const Measurements& measured);
bool has_sick(const std::vector<Finding>& findings);

/// Returns a line per node, the expected rates, and the findings as sentences.
std::string report(const Measurements& measured, const std::vector<Finding>& findings);

}  // namespace zea
