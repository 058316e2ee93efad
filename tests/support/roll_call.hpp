// SPDX-License-Identifier: Apache-2.0
// Before a strict collective all ranks exchange their next call; calls that differ are named on
// every rank, and a rank that nobody answers fails after a while instead of waiting for ever.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace zea {

/// A rank's call, in the form in which it is sent.
struct CallHeader {
  uint64_t sequence = 0;
  uint64_t counts_hash = 0;
  int64_t count = 0;          ///< elements in all
  int64_t sends_to_peer = 0;  ///< all_to_all: to the rank that receives this header
  int64_t expects_from_peer = 0;
  CallKind kind = CallKind::Barrier;  ///< messages: that of sends
  int32_t dtype = 0;
  int32_t op = -1;
  int32_t root = -1;

  bool same_call(const CallHeader& other) const;
};

/// "call 4, all_reduce(sum of 12 float32)".
std::string describe(const CallHeader& header);

/// A hash of bytes, for buffers and counts.
uint64_t hash_bytes(const void* data, size_t bytes);

class RollCall {
 public:
  RollCall(const Communicator& communicator, std::chrono::milliseconds patience)
      : communicator_(communicator), patience_(patience) {}

  /// `to_rank` holds this rank's header for every rank. Collective; throws CommError unless all
  /// agree.
  void check(const std::vector<CallHeader>& to_rank) const;

 private:
  std::vector<CallHeader> exchange(const std::vector<CallHeader>& to_rank) const;
  void check_pairs(const std::vector<CallHeader>& from_rank,
                   const std::vector<CallHeader>& to_rank) const;

  const Communicator& communicator_;
  std::chrono::milliseconds patience_;
};

}  // namespace zea
