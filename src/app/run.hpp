// SPDX-License-Identifier: Apache-2.0
// Executions that need ranks: a run, and the check of a job's nodes.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/node_memory.hpp"
#include "comm/world.hpp"
#include "core/error.hpp"
#include "data/loader.hpp"
#include "library/start.hpp"
#include "schedule/plan.hpp"
#include "watch/watchdog.hpp"

namespace zea {

/// The ranks of this execution.
struct Job {
  World& world;
  /// Ends the job at once with this message. Any thread of one rank calls it when the run hangs.
  std::function<void(const std::string& message)> abort_job;
  /// Prints a warning. Any thread of a rank calls it.
  std::function<void(const std::string& message)> warn;
  int rank;  ///< this rank's number: that of the world, until a plan gives it another
};

/// Starts what the command line asks for: deck, plan, mesh, model, data, restart, training or
/// evaluation. Sets `job.rank` as soon as there is a plan. Collective.
ExitCode run(const CommandLine& line, Job& job);

/// --check-node: rank 0 prints the nodes' facts and which of them are sick; all ranks return the
/// same. Collective.
ExitCode check_nodes(const CommandLine& line, Job& job);

/// --profile-hardware: measures devices and links with all ranks; rank 0 writes the hardware file
/// and prints it. Collective.
ExitCode profile_hardware(const CommandLine& line, Job& job);

/// --verify-layout: runs the first steps on the deck's layout and on a reference, and rank 0 prints
/// how they compare; all ranks return the same. Collective.
ExitCode verify_layout(const CommandLine& line, Job& job);

/// --reproduce: starts the run of an earlier run's directory again, compares the two, and rank 0
/// prints how they differ; all ranks return the same. Collective.
ExitCode reproduce(const CommandLine& line, Job& job);

/// The ranks of a job under the plan's numbers, with a watchdog. The record of each rank's actions
/// lies in memory of its node, which the watchdogs of all ranks there read.
struct WatchedRanks {
  WatchedRanks(Communicator of_plan, const Job& job, const Start& start);

  bool is_root() const { return ranks.rank() == 0; }

  Communicator ranks;
  NodeMemory records;
  ActionRecord record;
  std::unique_ptr<Collectives> real_control, control;
  std::optional<Watchdog> watchdog;
};

// Parts of a run that --verify-layout shares.

struct OpenedDevice {
  at::Device device = at::kCPU;
  std::string gpu;  ///< name of the maker; empty: none
};
/// Collective.
OpenedDevice open_device_of(const Start& start, WatchedRanks& ranks, const World& world);

/// Returns the cores per rank of this node. Collective.
double count_cores(WatchedRanks& ranks, const World& world);

/// Returns how this rank, with so many cores, loads samples.
LoaderOptions loading_here(const Plan& plan, int rank, double cores);

}  // namespace zea
