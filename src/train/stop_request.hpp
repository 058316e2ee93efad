// SPDX-License-Identifier: Apache-2.0
// Requests to save or to stop: signals (USR1: checkpoint now; USR2 and TERM: checkpoint and stop),
// files in the run directory (SAVE, STOP), and the time limit of -t. Ranks agree on them once per
// step, or per global batch of an evaluation, so a request to one rank is enough. A launcher's
// signal that reaches the ranks one after the other is one request, in whichever steps the ranks
// are.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/train_step.hpp"

namespace zea {

/// While an object lives signals are requests, counted from the first object on.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// A request after the run changes nothing: launchers signal one rank after the other, and
  /// the default action of USR1 and USR2 would end this rank with another exit code.
  ~StopSignals();
};

class StopRequest {
 public:
  /// Limits the run to `wall_seconds` from `start` on; 0: no limit. The root rank looks for
  /// files.
  StopRequest(std::string run_directory, bool is_root, double wall_seconds,
              std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());

  /// Returns the requests to this rank since the last call. The run stops `seconds_to_save` before
  /// the limit: the time of one more step and a checkpoint. A run that `has_saved` nothing does not
  /// know that time, so it saves once when half of the limit is over.
  StepFlags poll(double seconds_to_save, bool has_saved = true);
  /// Returns whether the next poll() will request this rank to stop.
  bool is_exit_requested(double seconds_to_save) const;
  /// Ranks have agreed to save after this step, which serves all requests to this rank until
  /// now. If there was none, the signal that others had may come for another
  /// `spread_seconds`.
  void serve_save(double spread_seconds = 1);
  double elapsed_seconds() const;
  /// Says that poll() took a STOP, which jobs/train_chain.sh looks for in the log; empty
  /// otherwise.
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
  bool is_half_over_ = false;  ///< half of the limit, and the save was requested
  bool has_asked_ = false;     ///< for a checkpoint that was not written yet
  int64_t on_its_way_until_ =
      0;  ///< clock_nanoseconds(): until then a signal that others have had may come
};

}  // namespace zea
