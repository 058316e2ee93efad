// SPDX-License-Identifier: Apache-2.0
// Nodes that do not answer over TCP, as the operating system knows: whatever library sends, the
// system sends data again that is not acknowledged, and counts how often.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace zea {

/// Returns the addresses of this node's network interfaces but the loopback; none where the system
/// does not tell them.
std::vector<std::string> own_addresses();

/// Returns the addresses of the peers, each once, to which data was sent again at least three times
/// without an answer (after a second and more), of `user`'s connections in a `table` as
/// /proc/net/tcp and /proc/net/tcp6 are.
std::vector<std::string> unanswered_peers(const std::string& table, uid_t user);

/// Likewise of the connections that this process's user has on this node now.
std::vector<std::string> unanswered_peers();

}  // namespace zea
