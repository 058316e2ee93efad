// SPDX-License-Identifier: Apache-2.0
// Sends open files between the processes of a node. The sockets have no names in the file system
// and vanish with their processes, so a killed rank leaves nothing behind. The processes must share
// a network namespace, but need no right to inspect each other, no common process numbers and no
// common folder.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/system.hpp"

namespace zea {

class FdSocket {
 public:
  /// Lets a peer find a box; trivially copyable.
  struct Address {
    char name[48] = {};
    /// Messages of this box carry it: anybody can write to a socket without a folder, but only
    /// those who were told know the key.
    uint64_t key = 0;
  };
  /// A queue surely takes this many messages that nobody has received yet (10 is the kernel's least
  /// default).
  static constexpr int kMaxQueued = 8;

  /// Opens a box. Throws CommError where the system refuses one.
  FdSocket();

  const Address& address() const { return address_; }
  /// Throws CommError where the peer's box does not exist or is full.
  void send(const Address& to, int own_rank, int file) const;
  /// Returns the sender's rank and the file of the next message of a peer and ignores messages of
  /// others. Does not wait: throws CommError where there is none.
  std::pair<int, Descriptor> receive(const std::vector<Address>& address_of_rank) const;

 private:
  Address address_;
  Descriptor socket_;
};

}  // namespace zea
