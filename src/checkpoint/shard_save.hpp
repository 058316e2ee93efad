// SPDX-License-Identifier: Apache-2.0
// One rank's part of a save, written by threads of its own straight from the live shards while
// training goes on with forward and backward; what is left before training changes the shards,
// snapshot_before_update() copies. The threads take what training leaves of the processor; who
// waits for them helps. None of them communicates.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/frozen_values.hpp"
#include "checkpoint/value_snapshot.hpp"
#include "io/manifest.hpp"
#include "io/shard_file.hpp"

namespace zea::detail {

/// Gives the calling thread, and those that it starts, a priority that is so much lower.
void step_back(int levels);

/// Training comes first. Levels for threads that mostly wait for the disk, and for all of a save
/// that is done in a moment: further back they would wait for a core longer than they work.
inline constexpr int kWaitingNice = 10;

struct ShardSaveRequest {
  std::string directory;
  std::string file, frozen_file;  ///< of pieces that change, and of those that do not
  std::string run_id;
  int64_t step = 0;
  double bytes_per_second = 0;  ///< at most; 0: as fast as it goes
};

/// State that a save leaves for the next one: memory for values on their way to the disk, the file
/// that may be linked, and where its values came from.
struct SaveMemory {
  PageMemory copies;
  std::vector<PageMemory> parts;  ///< of each thread that writes
  std::optional<FrozenShard> frozen;
  std::optional<FrozenOrigin> origin;  ///< of frozen values, where it is known
};

class ShardSave {
 public:
  /// Starts writing. `memory` is no other save's meanwhile. Without pieces that do not change there
  /// is no file of them.
  ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces, SaveMemory& memory);
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;
  /// Stops writing where that is still under way: what it wrote is no shard then.
  ~ShardSave();

  /// Bytes of values written so far; grows while the threads get on.
  int64_t written_bytes() const { return written_bytes_; }
  /// Whether the threads have ended, well or not.
  bool is_done() const { return done_; }
  /// To be called before the live shards change: copies what is neither written nor copied yet.
  void snapshot_before_update() { snapshot_.keep(); }
  /// Writes along with the threads, as one that training waits for, until nothing is left to begin;
  /// calls `moved` when it got on. A save with a rate limit is not helped.
  void help(const std::function<void()>& moved);
  /// Waits for the threads; throws what one threw. Returns the pieces with their hashes.
  const std::vector<Piece>& finish();
  /// The files, once finish() has returned; that of pieces which do not change is the second.
  const std::vector<ManifestFile>& files() const { return entries_; }

  int64_t bytes() const { return snapshot_.bytes(); }  ///< of all values
  int64_t kept_bytes() const { return snapshot_.kept_bytes(); }
  int64_t rounded_bytes() const { return snapshot_.rounded_bytes(); }
  double seconds() const { return seconds_; }  ///< that writing took; once it is done

 private:
  class Files;

  void run();
  int further_back() const;
  void write_all();
  void write_parts(Files& files, PageMemory& buffer, const std::function<void()>& moved);
  void write_lane(Files& files, int lane, const std::function<void()>& moved = {});
  void write_in_lanes(Files& files);
  Files* join_writers();
  double book(int64_t bytes);
  bool wait_until(double seconds);
  double elapsed_seconds() const;
  bool is_stopped();
  void stop(std::exception_ptr why = nullptr);

  const ShardSaveRequest request_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SaveMemory& memory_;
  ValueSnapshot snapshot_;
  std::vector<Piece> pieces_;
  std::vector<ManifestFile> entries_;
  double seconds_ = 0;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable changed_;
  bool is_stopped_ = false;
  bool is_helped_ = false;
  Files* files_ = nullptr;      ///< while parts of their pieces may be written
  std::exception_ptr failure_;  ///< the first
  double allowed_seconds_ = 0;  ///< when the rate limit lets the next part go

  std::atomic<int64_t> written_bytes_ = 0;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace zea::detail
