// SPDX-License-Identifier: Apache-2.0
// One rank's part of a save, written by a thread of its own straight from the live shards while
// training goes on with forward and backward. Before training changes them, keep_values() copies
// what is not written yet. The thread never communicates.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "own_pieces.hpp"
#include "zea/io/manifest.hpp"
#include "zea/io/page_memory.hpp"
#include "zea/io/shard_file.hpp"

namespace zea::detail {

struct ShardSaveRequest {
  std::string directory, file, run_id;
  int64_t step = 0;
  DType dtype = DType::Float32;
  double bytes_per_second = 0;  ///< at most; 0: as fast as it goes
};

class ShardSave {
 public:
  /// Starts writing.
  ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces);
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;
  /// Stops writing where that is still under way: what it wrote is no shard then.
  ~ShardSave();

  /// Whether the thread has ended, well or not.
  bool is_done() const { return done_; }
  /// To be called before the live shards change: copies what is not written yet. Once is enough.
  void keep_values();
  /// Waits for the thread; throws what it threw. Returns the pieces with their hashes.
  const std::vector<Piece>& finish();

  int64_t bytes() const { return bytes_; }              ///< of all values
  int64_t kept_bytes() const { return kept_.bytes(); }  ///< that keep_values() had to copy
  double seconds() const { return seconds_; }           ///< that writing took; once it is done

 private:
  /// A part of a piece that is on its way to the disk.
  struct Part {
    size_t piece = 0;
    int64_t first = 0, count = 0;  ///< elements
    double start_seconds = 0;      ///< before which the rate limit does not let it go
  };

  void run();
  void write_all();
  void write_parts(ShardWriter& writer);
  void write_in_lanes(ShardWriter& writer);
  bool take_part(Part& part, char* target);
  bool wait_until(double seconds);
  double elapsed_seconds() const;
  void stop();

  const ShardSaveRequest request_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t bytes_ = 0;
  std::vector<Piece> pieces_;
  std::exception_ptr failure_;
  double seconds_ = 0;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable stopping_;
  bool is_stopped_ = false, is_kept_ = false;
  std::vector<OwnPiece> sources_;
  std::vector<int64_t> source_first_;  ///< element of the piece where its source starts
  size_t next_piece_ = 0;              ///< the next part to be taken
  int64_t next_element_ = 0;
  double allowed_seconds_ = 0;  ///< when the rate limit lets the next part go
  PageMemory kept_;

  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace zea::detail
