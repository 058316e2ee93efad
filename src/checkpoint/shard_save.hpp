// SPDX-License-Identifier: Apache-2.0
// One rank's part of a save. Threads write straight from the live shards while training goes on
// with forward and backward. Another thread may copy from the far end, so that
// snapshot_before_update() finds little left to copy. The threads have a low priority and do not
// communicate.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/frozen_values.hpp"
#include "checkpoint/value_snapshot.hpp"
#include "io/manifest.hpp"
#include "io/shard_file.hpp"

namespace zea::detail {

/// Lowers the priority of the calling thread, and of threads that it starts, by so many levels.
void step_back(int levels);

/// Levels for threads that mostly wait for the disk, and for all threads of a short save: with
/// a lower priority they would wait for a core longer than they work.
inline constexpr int kWaitingNice = 10;

struct ShardSaveRequest {
  std::string directory;
  std::string file, frozen_file;  ///< for pieces that change, and for those that do not
  std::string run_id;
  int64_t step = 0;
  double bytes_per_second = 0;  ///< at most; 0: as fast as it goes
  bool stages = true;           ///< copies in the background
};

/// State that a save leaves for the next one.
struct SaveMemory {
  PageMemory copies;
  std::vector<PageMemory> parts;  ///< a buffer for each thread that writes
  std::optional<FrozenShard> frozen;
  std::optional<FrozenOrigin> origin;  ///< of frozen values, where it is known
};

class ShardSave {
 public:
  /// Starts to write; no other save may use `memory` meanwhile. Without pieces that do not
  /// change there is no frozen file.
  ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces, SaveMemory& memory);
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;
  /// Stops an unfinished save, whose files are no shards then.
  ~ShardSave();

  /// Returns the bytes of values written so far.
  int64_t written_bytes() const { return written_bytes_; }
  /// Returns whether the threads have ended, well or not.
  bool is_done() const { return done_; }
  /// Copies the values that are neither written nor copied yet. Must be called before they
  /// change.
  void snapshot_before_update() { snapshot_.keep(); }
  /// Waits for the threads; throws what one threw. Returns the pieces with their hashes.
  const std::vector<Piece>& finish();
  /// Returns the files, once finish() has returned; the frozen file is the second.
  const std::vector<ManifestFile>& files() const { return entries_; }

  int64_t bytes() const { return snapshot_.bytes(); }  ///< of all values
  int64_t kept_bytes() const { return snapshot_.kept_bytes(); }
  int64_t staged_bytes() const { return snapshot_.staged_bytes(); }
  int64_t rounded_bytes() const { return snapshot_.rounded_bytes(); }
  double seconds() const { return seconds_; }  ///< of writing; once it is done

 private:
  class Files;

  void run();
  int further_back() const;
  void write_all();
  void write_lane(Files& files, PageMemory& buffer);
  void write_parts(Files& files, PageMemory& buffer);
  double book(int64_t bytes);
  bool wait_until(double seconds);
  double elapsed_seconds() const;
  void stage();
  bool is_stopped();
  void stop(std::exception_ptr why = nullptr);

  const ShardSaveRequest request_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SaveMemory& memory_;
  ValueSnapshot snapshot_;
  std::vector<Piece> pieces_;
  std::vector<ManifestFile> entries_;
  double seconds_ = 0;

  std::mutex mutex_;  ///< guards the following
  std::condition_variable changed_;
  bool is_stopped_ = false;
  std::exception_ptr failure_;  ///< the first
  double allowed_seconds_ = 0;  ///< when the rate limit allows the next part

  std::atomic<int64_t> written_bytes_ = 0;
  std::atomic<bool> done_ = false;
  std::thread stager_, thread_;
};

}  // namespace zea::detail
