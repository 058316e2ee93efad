// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files: scalars over steps. A file is a sequence of records (length, its
// checksum, bytes, their checksum), and a record an Event in protobuf's encoding. Four fields are
// needed, so both are encoded here without a library. TensorBoard reads the files of a directory in
// the order of their names, as one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/system.hpp"

namespace zea {

struct EventScalar {
  std::string tag;
  double value;  ///< TensorBoard keeps 32 bits of it
};

/// The scalars of a step; the time is in seconds since 1970.
struct Event {
  double wall_seconds = 0;
  int64_t step = 0;
  std::vector<EventScalar> scalars;
};

/// An event as the bytes of one record.
std::string event_record(const Event& event);

/// The records that a file begins with: its version, and the start of a session, upon which
/// TensorBoard forgets what earlier files hold of `first_step` and later.
std::string event_file_header(double wall_seconds, int64_t first_step);

/// The event file of one start of a run. Whoever dies leaves a truncated last record at most, which
/// readers pass over; a write that failed leaves none.
class EventFile {
 public:
  /// The file, in `directory`, is made by the first append. `first_step`: the first that this start
  /// runs.
  EventFile(std::string directory, int64_t first_step);

  /// Writes an event of now; throws StorageError.
  void append(int64_t step, const std::vector<EventScalar>& scalars);
  const std::string& path() const { return path_; }  ///< empty before the first append

 private:
  void open();
  void write(const std::string& bytes);

  std::string directory_, path_;
  int64_t first_step_;
  Descriptor file_;
  int64_t written_bytes_ = 0;
};

}  // namespace zea
