// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints. Each rank writes its 1/N cut of every buffer into a directory with an
// unfinished name. The directory gets its final name only when all files are synced, every element
// is covered exactly once and the manifest is there. Threads that do not communicate write the
// files, so training goes on meanwhile. Frozen values have files of their own, which are written
// once and then hard-linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/shard_save.hpp"
#include "comm/collectives.hpp"
#include "core/action_record.hpp"
#include "io/manifest.hpp"
#include "parallel/engine.hpp"
#include "zea/checkpoint.hpp"

namespace zea {

struct CheckpointRequest {
  std::string directory;  ///< holds the step-... directories; made when it is not there
  std::string run_id;
  TrainPosition position;
  std::string deck;           ///< resolved TOML
  std::string job_info = {};  ///< JSON, on rank 0; empty: none
  double rate_limit_mib = 0;  ///< MiB/s per rank; 0: none
};

/// Sums over all ranks, and seconds of the slowest one.
struct SaveReport {
  std::string path;
  int64_t step = 0;
  bool was_there = false;      ///< complete already: nothing was written
  double seconds = 0;          ///< to write the files and to commit them
  double stall_seconds = 0;    ///< part of `seconds` during which training waited
  double copy_seconds = 0;     ///< part of `stall_seconds` spent in snapshot_before_update()
  int64_t copied_bytes = 0;    ///< copied into memory before they were written
  int64_t bytes = 0;           ///< values written
  int64_t linked_bytes = 0;    ///< frozen values whose files were linked
  int64_t rounded_bytes = 0;   ///< frozen values whose source has changed since it was read
  std::string why_not_linked;  ///< why frozen values were written again; empty: they were not
  double mib_per_second = 0;   ///< of all ranks together, while they wrote
};

/// Saves of one run, one at a time. Functions are collective over `control` (host collectives of
/// all ranks, in order of world rank) unless they say otherwise. The engine's frozen values must
/// not change while the writer lives.
class CheckpointWriter {
 public:
  CheckpointWriter(Engine& engine, Collectives& control);
  /// Abandons a save that is not finished. Not collective.
  ~CheckpointWriter();

  /// Names the `source` that the engine's values were just read from; it outlives the writer.
  /// Frozen values are written as they are there. If the source is a checkpoint of this layout, the
  /// first save already links its frozen files. Not collective.
  void starts_from(const WeightsSource& source);

  /// Begins to write `directory`/step-NNNNNNNN; no other save may be under way. A complete
  /// checkpoint of this run, step and position is left as it is; anything else of that name is
  /// renamed to step-NNNNNNNN.replaced-K, never deleted. On a failure in start(), advance() or
  /// finish() all ranks throw (StorageError for the disk's), the unfinished directory is removed,
  /// and earlier checkpoints are untouched.
  void start(const CheckpointRequest& request);
  bool is_under_way() const { return save_ != nullptr; }
  /// Returns whether this rank still works for the save in the background. Not collective.
  bool is_writing() const;
  /// Copies the values that are neither written nor copied yet. The caller must call it before it
  /// changes them. Not collective.
  void snapshot_before_update();
  /// Begins to commit the ranks' files in the background; no rank may be writing any more. Returns
  /// false if that was done before: then finish() does not wait.
  bool advance();
  /// Waits until the files of all ranks are a checkpoint.
  SaveReport finish();
  /// Does what the function keep_newest() does, but deletes files in the background, until the next
  /// call, start(), finish_removal() or destructor.
  void keep_newest(const std::string& directory, int64_t keep);
  void finish_removal();
  /// Returns, on the root and once, why a checkpoint that should be gone is still there, whole or
  /// in part; empty: none is. Not collective.
  std::string take_removal_fault();

 private:
  struct Save;

  void wait_for_removal();
  bool is_there_already();
  void make_directory_for(const std::vector<detail::OwnPiece>& pieces);
  void start_shard(std::vector<detail::OwnPiece> pieces);
  void begin_commit();
  Manifest own_part();
  void commit(const Save& save, const std::vector<std::string>& parts) const;
  void remove_unfinished() noexcept;
  SaveReport report();
  ActionRecord& record() const { return engine_.mesh().record(); }

  Engine& engine_;
  Collectives& control_;
  std::atomic<int64_t> removed_files_ = 0;
  std::future<void> removal_;  ///< on the root
  std::string removal_fault_;
  detail::SaveMemory memory_;  ///< outlives each save
  std::unique_ptr<Save> save_;
};

/// Returns the layout of a plan in one line for people.
std::string describe_mesh(const Plan& plan);

/// Starts and finishes a save; returns its path.
std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request);

namespace detail {

/// Waits until `is_done`. As long as `count` changes, the record moves: slow is not stuck.
void wait_while_slow(ActionRecord& record, const std::function<bool()>& is_done,
                     const std::function<int64_t()>& count);

}  // namespace detail

}  // namespace zea
