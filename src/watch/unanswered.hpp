// SPDX-License-Identifier: Apache-2.0
// Finds nodes that do not answer over TCP. The operating system retransmits data that is not
// acknowledged and counts the retransmissions, whatever library sent the data.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace zea {

/// Returns the addresses of this node's network interfaces except the loopback; empty if the system
/// does not list them.
std::vector<std::string> own_addresses();

/// Returns the peer addresses, each once, of `user`'s connections with at least three
/// retransmissions in a row without an answer (which take a second or more). `table` has the format
/// of /proc/net/tcp and /proc/net/tcp6.
std::vector<std::string> unanswered_peers(const std::string& table, uid_t user);

/// Reads the tables of this node and returns such peers of this process's user.
std::vector<std::string> unanswered_peers();

}  // namespace zea
