// SPDX-License-Identifier: Apache-2.0
// Collectives that record each call and pass it on: tests of schedules and strategies read the
// record.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.hpp"

namespace zea::testing {

/// One call: "all_reduce", "all_gather", "reduce_scatter", ...
struct RecordedCall {
  std::string call;
  int ranks;
  int64_t elements;  ///< of the whole buffer
  DType dtype;
  const void* data;  ///< that this rank sends
  /// How often its Pending was asked whether it has finished, and so could progress.
  std::shared_ptr<int> asked = std::make_shared<int>(0);

  /// Alike in all but the address and the asking.
  bool is_like(const RecordedCall& other) const {
    return call == other.call && ranks == other.ranks && elements == other.elements &&
           dtype == other.dtype;
  }
};
using Record = std::vector<RecordedCall>;

/// Makes MPI collectives that append to `record`, which must outlive them.
MakeCollectives recording(Record& record);

/// The calls named `call`.
Record calls_of(const Record& record, const std::string& call);

}  // namespace zea::testing
