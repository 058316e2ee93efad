// SPDX-License-Identifier: Apache-2.0
// Who waits for whom on the stand-in devices of a machine. Each process keeps a table of what its
// streams wait for and of its calls of NCCL that have not ended, in memory that other processes
// read once a call has waited too long. A circle of waits is reported with the rank and the name of
// every call in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea::testing {

/// A rank of another process without which a call does not go on. Both ends know what they meet in
/// by the same number.
struct Meeter {
  uint64_t meeting;
  int process;
};

/// A launched call of NCCL.
struct WaitingCall {
  std::string name;  ///< "ncclAllGather #3 of llm.tp"
  int64_t turn;      ///< in the order of launches
  int stream;
  std::vector<Meeter> meeters;
};

class WaitTable {
 public:
  /// The table of this process.
  static WaitTable& own();

  /// The call is launched; returns its number in the table.
  int launch(const WaitingCall& call);
  /// Its stream has come to the call, which begins in its turn.
  void reach(int call);
  void begin(int call);
  void end(int call);
  /// The stream waits for an event of stream `other`; -1: no longer.
  void wait(int stream, int other);
  /// The host waits for a stream; -1: no longer.
  void host_waits(int stream);

  /// Why the call does not end: "rank 0's ncclAllGather #3 of llm.tp waits for ...", and whether
  /// that is a circle.
  std::string explain(int call) const;

 private:
  WaitTable();

  struct Table* table_;
};

}  // namespace zea::testing
