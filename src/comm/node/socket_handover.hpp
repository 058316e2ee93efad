// SPDX-License-Identifier: Apache-2.0
// Sends open files to peers through sockets whose names are in no folder and vanish with their
// processes. It needs one network namespace, but no right to look into other processes, no common
// numbering of processes and no common folder: what containers forbid is seldom this.
#pragma once

#include "node/handover.hpp"

namespace zea {

class SocketHandover : public Handover {
 public:
  explicit SocketHandover(const HandoverRanks& ranks) : ranks_(ranks) {}

  /// One to open the sockets, then some to send, each of which takes what the one before sent.
  int num_steps() const override;
  void take_step(int step) override;

 private:
  /// What a queue surely takes of two steps, since a fast peer is one ahead (10 is the kernel's
  /// least default); nor may a user's processes have many files under way.
  static constexpr int kSendsAtOnce = 4;

  void open_box();
  void send_to(int rank) const;
  void receive_one();
  /// How many of the peers send_step n concerns.
  int num_sent(int send_step) const;

  const HandoverRanks& ranks_;
  Descriptor box_;
};

}  // namespace zea
