// SPDX-License-Identifier: Apache-2.0
// The collectives of a node as tests make them: over as many nodes as they like, and with every
// buffer copied to memory that peers reach and back, so that tests which know only vectors go where
// allocated buffers go.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace zea::testing {

/// All ranks on one node.
std::unique_ptr<Collectives> make_on_one_node(const Communicator& communicator);
/// Two neighbors per node.
std::unique_ptr<Collectives> make_on_nodes_of_two(const Communicator& communicator);
/// The last rank alone on its node.
std::unique_ptr<Collectives> make_with_one_apart(const Communicator& communicator);
/// One node, all buffers of reductions and gatherings allocated.
std::unique_ptr<Collectives> make_in_place(const Communicator& communicator);
/// Two neighbors per node, likewise.
std::unique_ptr<Collectives> make_in_place_on_nodes_of_two(const Communicator& communicator);

}  // namespace zea::testing
