// SPDX-License-Identifier: Apache-2.0
// Saving: every rank writes its own 1/N cut of every buffer into a directory with an unfinished
// name; only when all files are synced, every element is covered exactly once and the manifest is
// there does it get its final name. The ranks' files are written by threads that do not
// communicate, so training can go on meanwhile. Frozen values have files of their own, written once
// and then hard-linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "comm/collectives.hpp"
#include "io/manifest.hpp"
#include "parallel/engine.hpp"
#include "zea/checkpoint.hpp"

namespace zea {

namespace detail {
struct SaveMemory;
class CheckpointSave;
}  // namespace detail

struct CheckpointRequest {
  std::string directory;  ///< where step-... directories lie; made when it is not there
  std::string run_id;
  TrainPosition position;
  std::string deck;           ///< resolved TOML
  double rate_limit_mib = 0;  ///< MiB/s per rank; 0: none
  bool stages = true;         ///< copies ahead in the background, for keep_values()
};

/// What a save was like, over all ranks.
struct SaveReport {
  std::string path;
  int64_t step = 0;
  bool was_there = false;      ///< complete already: nothing was written
  double seconds = 0;          ///< that it took to write the files and to make them a checkpoint
  double stall_seconds = 0;    ///< of these, that training stood still
  double copy_seconds = 0;     ///< of the stall, copying what an optimizer step was about to change
  int64_t copied_bytes = 0;    ///< into memory before they were written, of all ranks
  int64_t staged_bytes = 0;    ///< of these, in the background
  int64_t bytes = 0;           ///< of all ranks' values that were written
  int64_t linked_bytes = 0;    ///< of frozen values whose files the last checkpoint has, too
  int64_t rounded_bytes = 0;   ///< of frozen values whose source was no longer what was read
  std::string why_not_linked;  ///< and were written anew; empty: that was to be, or all were linked
  double mib_per_second = 0;   ///< of all ranks together, while they wrote
};

/// Saves of one run, one at a time. All but those that say so are collective over `control`:
/// host collectives of all ranks, in order of world rank. Frozen values of the engine stay what
/// they are as long as it lives.
class CheckpointWriter {
 public:
  CheckpointWriter(Engine& engine, Collectives& control);
  /// Gives a save that is not finished up. Not collective.
  ~CheckpointWriter();

  /// The engine's values were just read from `source`, which outlives the writer: frozen ones are
  /// written as they are there. If it is a checkpoint of this layout, its files of them are linked
  /// by the first save, too. Not collective.
  void starts_from(const WeightsSource& source);

  /// Begins to write `directory`/step-NNNNNNNN; no other save may be under way. A checkpoint of
  /// this run, step and position that is already complete is left as it is; any other in its
  /// place is renamed to step-NNNNNNNN.replaced-K, never deleted. On a failure all ranks throw
  /// (StorageError for the disk's), what was begun is removed, and earlier checkpoints are
  /// untouched: here as in advance() and finish().
  void start(const CheckpointRequest& request);
  bool is_under_way() const { return save_ != nullptr; }
  /// Whether this rank still works for the save in the background. Not collective.
  bool is_writing() const;
  /// To be called before the shards change while a save is under way: copies what is neither on its
  /// way to the disk nor copied in the background. Not collective.
  void keep_values();
  /// To be called when no rank is_writing() any more: begins to make the ranks' files a checkpoint,
  /// in the background. False where that was done before: finish() waits for nothing then.
  bool advance();
  /// Waits until all ranks' files are a checkpoint.
  SaveReport finish();
  /// As the function keep_newest(), but files are deleted in the background, which a disk may take
  /// long for: until the next call, start(), finish_removal() or destructor.
  void keep_newest(const std::string& directory, int64_t keep);
  void finish_removal();
  /// Why what earlier calls should have removed is still there, or a part of it, which looks like
  /// no checkpoint. Empty on the other ranks, and where it was said. Not collective.
  std::string removal_fault();

 private:
  void wait_for_removal();

  Engine& engine_;
  Collectives& control_;
  std::atomic<int64_t> removed_files_ = 0;
  std::future<void> removal_;  ///< on the root
  std::string removal_fault_;
  std::unique_ptr<detail::SaveMemory> memory_;  ///< outlives each save
  std::unique_ptr<detail::CheckpointSave> save_;
};

/// Start and finish in one.
std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request);

}  // namespace zea
