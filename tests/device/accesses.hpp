// SPDX-License-Identifier: Apache-2.0
// Reads and writes of an allocation by streams, and those that nothing orders.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/clock.hpp"

namespace zea::testing {

/// Bytes [begin, end) that something in a stream reads, or writes.
struct Access {
  std::string what;  ///< "ncclAllReduce", "aten::mul"
  int stream;
  int64_t time;  ///< of the stream
  size_t begin, end;
  bool writes;
};

class Accesses {
 public:
  /// Adds one made with `seen`. An earlier one of the same bytes that it has not seen, where one of
  /// the two writes, is a race: gives that one.
  std::optional<Access> add(const Access& access, const Clock& seen);

 private:
  std::vector<Access> open_;  ///< that a later one may not have seen
};

}  // namespace zea::testing
