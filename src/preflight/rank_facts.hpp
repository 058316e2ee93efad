// SPDX-License-Identifier: Apache-2.0
// What a rank finds out about itself and its node without asking anybody.
#pragma once

#include <string>

#include "preflight/measurements.hpp"

namespace zea {

/// All but what is of disks and GPUs.
RankFacts facts_of_host(int threads, const std::string& version);

/// The lowest of a host's memory and the limits of this process's control groups, as `groups`
/// (/proc/self/cgroup) names them below `mount`.
int64_t memory_limit(int64_t total_bytes, const std::string& groups, const std::string& mount);

/// Free bytes and write rate of the file system of `directory`, or of the nearest folder above that
/// there is.
void measure_disk(const std::string& directory, RankFacts& facts);

std::string text_of(const RankFacts& facts);
RankFacts facts_of_text(const std::string& text);

}  // namespace zea
