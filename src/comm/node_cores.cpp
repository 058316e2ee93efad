// SPDX-License-Identifier: Apache-2.0
#include "comm/node_cores.hpp"

#include <sched.h>

#include <set>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "comm/world.hpp"

namespace zea {

std::vector<int> own_cores() {
  cpu_set_t own;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof own, &own) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &own)) cores.push_back(core);
  return cores;
}

double cores_per_rank(const World& world) {
  std::ostringstream own;
  for (const int core : own_cores()) own << core << ' ';
  const std::unique_ptr<Collectives> all = make_mpi_collectives(world.communicator());
  const std::vector<std::string> texts = all_gather_texts(*all, own.str());
  const std::vector<int>& nodes = world.node_of_rank();
  std::set<int> cores;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (nodes[rank] != nodes[static_cast<size_t>(world.rank())]) continue;
    std::istringstream of_rank(texts[rank]);
    for (int core; of_rank >> core;) cores.insert(core);
  }
  return static_cast<double>(cores.size()) / world.local_size();
}

}  // namespace zea
