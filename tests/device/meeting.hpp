// SPDX-License-Identifier: Apache-2.0
// The ranks of a stand-in NCCL communicator exchange data through a file in memory that all of them
// map. Nothing waits longer than two minutes, or the set limit: the error names missing ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace zea::testing {

void set_patience(std::chrono::milliseconds patience);
inline constexpr std::chrono::milliseconds kUsualPatience = std::chrono::minutes(2);

/// Nothing came within that time.
struct OutOfPatience : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A message on its way, piece by piece.
struct Transfer {
  std::string call;  ///< "12 of float32": what both ends must say
  int peer;
  char* data;  ///< only read where it is sent
  size_t bytes;
  bool sends;
  size_t moved = 0;
  double met = 0;  ///< virtual time at which both ends had begun
};

class Meeting {
 public:
  /// Collective: returns when all `size` ranks are there. Like all calls, throws std::runtime_error
  /// that names the fault and the ranks.
  Meeting(const std::string& name, int rank, int size);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  const std::string& name() const { return name_; }
  /// The process of a rank.
  int process(int rank) const;

  /// Every rank makes this call, described alike, with `bytes` of which each shows its own (null:
  /// nothing). `take` sees them in pieces: all ranks' bytes from `offset` on, `piece` of them.
  using Take =
      std::function<void(const std::vector<const char*>& shown, size_t offset, size_t piece)>;
  /// Returns the latest of the virtual times `begin` of all ranks.
  double show(const std::string& call, const char* mine, size_t bytes, const Take& take,
              double begin);

  /// Returns when the peers of all of these have come here, too, or have come before: as NCCL's
  /// host does, which connects a pair at the first message of each way.
  void connect(const std::vector<Transfer>& messages);

  /// Brings all of them to their ends, in whatever order their peers come. They begin at virtual
  /// time `begin`, and each waits for its peer to begin: nothing is sent ahead.
  void move(std::vector<Transfer>& transfers, double begin);

  /// Whoever waits here fails.
  void abort();

 private:
  struct File;
  struct Board;
  struct Letter;

  void await(const std::function<bool()>& reached, const std::function<std::string()>& missing);
  void meet(const std::string& call);
  Board& board(int rank) const;
  Letter& letter(int from, int to) const;
  bool step(Transfer& transfer);
  void meet_peers(std::vector<Transfer>& transfers, double begin);

  std::string name_;
  int rank_, size_;
  size_t bytes_ = 0;
  File* file_ = nullptr;
  size_t meetings_ = 0;
  std::map<std::pair<int, bool>, size_t> messages_;  ///< with each peer, each way, so far
};

}  // namespace zea::testing
