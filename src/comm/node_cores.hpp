// SPDX-License-Identifier: Apache-2.0
// The processor cores of a node and the ranks that share them, whatever binding the launcher has
// set.
#pragma once

#include <vector>

namespace zea {

class World;

/// Returns the cores that this process may run on, ascending; empty if unknown.
std::vector<int> own_cores();

/// The number of cores that any rank of this node may run on, per rank. Collective over all ranks.
double cores_per_rank(const World& world);

}  // namespace zea
