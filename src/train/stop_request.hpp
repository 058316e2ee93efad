// SPDX-License-Identifier: Apache-2.0
// How a run is asked to save or to leave: signals (USR1: checkpoint now; USR2 and TERM: checkpoint
// and leave), files in the run directory (SAVE, STOP), and the wall limit of -t. Ranks agree on it
// once per step, or global batch of an evaluation, so asking one rank is enough; a launcher's
// signal, which reaches one rank after the other, is one request all the same, whichever steps
// ranks are in.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/train_step.hpp"

namespace zea {

/// While one of them lives signals are requests, counted from the first.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// A request that comes when the run is over changes nothing: launchers tell one rank after the
  /// other, and what USR1 and USR2 do by default would end this one with another exit code.
  ~StopSignals();
};

class StopRequest {
 public:
  /// `wall_seconds` from `start` on; 0: no limit. Files are looked for by the root rank.
  StopRequest(std::string run_directory, bool is_root, double wall_seconds,
              std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());

  /// What this rank was asked for since the last call. `seconds_to_save` is how long one more step
  /// and a checkpoint may take: the run leaves while that much is left. A run that `has_saved`
  /// nothing does not know: it saves once when half of its time is over.
  StepFlags poll(double seconds_to_save, bool has_saved = true);
  /// Whether the next poll() will say that this rank was asked to leave.
  bool is_leave_asked(double seconds_to_save) const;
  /// Ranks have agreed to save what this step made. That is what this rank was asked for until now
  /// as well; and if it was asked for nothing so far, the signal that others had may come
  /// for another `spread_seconds`.
  void serve_save(double spread_seconds = 1);
  double elapsed_seconds() const;
  /// Of a STOP that poll() took, which jobs/train_chain.sh looks for in the log; empty otherwise.
  const std::string& note() const { return note_; }

 private:
  int take_save_signals();
  bool is_time_up(double seconds_to_save) const;

  StopSignals signals_;
  std::string directory_;
  bool is_root_;
  double wall_seconds_;
  std::chrono::steady_clock::time_point start_;
  std::string note_;
  bool is_half_over_ = false;     ///< the time, and a run that had saved nothing was told so
  bool has_asked_ = false;        ///< for a checkpoint, and it was not served yet
  int64_t on_its_way_until_ = 0;  ///< clock_nanoseconds(): for a signal that others have had
};

}  // namespace zea
