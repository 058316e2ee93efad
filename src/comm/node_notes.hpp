// SPDX-License-Identifier: Apache-2.0
// What ranks have to note of their nodes, for the rank that speaks, which sees its own alone.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

struct NodeNote {
  int node = 0;  ///< equal on the ranks of a node, and there alone
  std::string host, text;
};

/// The first note, and of several nodes which have one; empty: there is none.
std::string describe(const std::vector<NodeNote>& notes, size_t num_nodes);

/// The same of all ranks, where an empty text notes nothing. Host collectives; collective.
std::string note_of_nodes(Collectives& host, const NodeNote& own);

}  // namespace zea
