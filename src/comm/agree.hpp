// SPDX-License-Identifier: Apache-2.0
// Agreement on a step that may fail on some ranks, such as reading or writing files: either all
// ranks continue or all throw, so that no rank waits for one that has failed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// Runs `risky`, which must not communicate, on every rank. Returns when it returned on all of
/// them. Otherwise every rank throws: one that failed its own exception, the others the message,
/// number and exit code of the lowest rank that failed. Collective over `control`.
void agree(Collectives& control, const std::function<void()>& risky);

/// The same, with `risky` run on rank 0 alone.
void agree_on_root(Collectives& control, const std::function<void()>& risky);

/// Returns the texts of all ranks on rank 0, and nothing on the others. Host collectives;
/// collective.
std::vector<std::string> gather_texts(Collectives& host, const std::string& text);

/// Returns the text of every rank on all ranks. Host collectives; collective.
std::vector<std::string> all_gather_texts(Collectives& host, const std::string& text);

// Notes of ranks on their nodes, gathered for the rank that logs.

struct NodeNote {
  int node = 0;  ///< equal on the ranks of a node, and there alone
  std::string host, text;
};

/// Returns the first note and, if there are several nodes, the nodes that have one; empty: there is
/// none.
std::string describe(const std::vector<NodeNote>& notes, size_t num_nodes);

/// Returns the same of all ranks; an empty text is no note. Host collectives; collective.
std::string note_of_nodes(Collectives& host, const NodeNote& own);

}  // namespace zea
