// SPDX-License-Identifier: Apache-2.0
// How far a long copy is, on stderr: a bar on a terminal, and lines elsewhere when they are asked
// for.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace zea {

class Progress {
 public:
  /// Shown on a terminal, or when `always`.
  Progress(int64_t total_bytes, bool always);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Ends the bar's line.
  ~Progress();

  /// More bytes were copied; by any thread.
  void add(int64_t bytes);

 private:
  void show() const;

  int64_t total_bytes_;
  bool is_bar_, is_shown_;
  std::chrono::steady_clock::time_point start_, last_shown_;
  std::mutex mutex_;
  int64_t done_bytes_ = 0;
};

}  // namespace zea
