// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <utility>

#include "app/answer.hpp"
#include "app/run.hpp"
#include "comm/agree.hpp"
#include "core/text.hpp"
#include "kernels/flat_kernels.hpp"
#include "preflight/health_check.hpp"
#include "preflight/measure_nodes.hpp"

namespace zea {
namespace {

/// Limit of each part of the check.
constexpr double kCheckSeconds = 180;

}  // namespace

ExitCode check_nodes(const CommandLine& line, Job& job) {
  const KernelRuntime kernels;
  std::optional<std::jthread> start_limit = limit_start(kCheckSeconds, job.abort_job);
  Communicator all = job.world.communicator();
  Start start;
  agree(*make_mpi_collectives(all), [&] { start = read_check(line); });
  double& deadline = start.options.run.watchdog_seconds;
  deadline = std::min(deadline, kCheckSeconds);
  WatchedRanks ranks(std::move(all), job, start);
  start_limit.reset();
  const Measurements measured =
      measure_nodes(job.world, {start.options.run, start.directory, version()}, ranks.record);
  int64_t is_sick = 0;
  if (ranks.is_root()) {
    const std::vector<Finding> findings = check_health(measured);
    std::fputs(printable(report(measured, findings)).c_str(), stdout);
    is_sick = has_sick(findings);
  }
  ranks.control->broadcast(&is_sick, 1, DType::Int64, 0).wait();
  return is_sick != 0 ? ExitCode::SickNode : ExitCode::Done;
}

}  // namespace zea
