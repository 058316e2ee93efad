// SPDX-License-Identifier: Apache-2.0
// job_info.json of a run directory: for every start of the run its program, machines, layout, deck,
// data and weights, by which a run can be told from another and started again. Checkpoints hold the
// entry of the start that wrote them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "data/dataset.hpp"
#include "library/start.hpp"
#include "schedule/plan.hpp"

namespace zea {

inline constexpr const char* kJobInfoFile = "job_info.json";

struct JobParts {
  const Start& start;
  const Plan& plan;
  const Dataset& train;
  const Dataset* eval;    ///< null: none
  std::string gpu;        ///< of this rank, by its maker's name; empty: none
  int64_t from_step = 0;  ///< steps that were done before
};

/// Returns the entry of this start, as JSON; empty on other ranks than rank 0. Collective over
/// `control`, host collectives of all ranks.
std::string describe_job(const JobParts& parts, Collectives& control);

/// Adds an entry to the file of a run directory. Throws StorageError, WeightsError where the file
/// that is there cannot be read.
void add_start(const std::string& run, const std::string& entry);

/// Returns the entries of a run directory, the first start first. Throws WeightsError.
std::vector<nlohmann::json> read_starts(const std::string& run);

/// Returns a line for each fact in which two starts differ, times and names of hosts left out.
std::string describe_differences(const nlohmann::json& then, const nlohmann::json& now);

}  // namespace zea
