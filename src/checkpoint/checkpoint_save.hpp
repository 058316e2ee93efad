// SPDX-License-Identifier: Apache-2.0
// One save of one rank, from the first look at the directory to the final name. CheckpointWriter
// says what its functions do.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/shard_save.hpp"
#include "core/system.hpp"

namespace zea::detail {

class CheckpointSave {
 public:
  /// `memory` is no other save's meanwhile.
  CheckpointSave(Engine& engine, Collectives& control, SaveMemory& memory,
                 const CheckpointRequest& request);
  CheckpointSave(const CheckpointSave&) = delete;
  CheckpointSave& operator=(const CheckpointSave&) = delete;

  void start();
  bool is_writing() const { return is_writing_file() || is_committing(); }
  void keep_values();
  bool advance();
  SaveReport finish();

 private:
  bool is_writing_file() const { return shard_ && !shard_->is_done(); }
  bool is_committing() const;
  bool is_this_checkpoint() const;
  template <class Action>
  auto or_remove(const Action& action);
  void begin_commit();
  void wait_for_own_file();
  bool is_done_already();
  void prepare(const std::vector<OwnPiece>& pieces);
  void start_shard(std::vector<OwnPiece> pieces);
  bool link_frozen();
  void find_written_frozen();
  Manifest own_part() const;
  void commit(const std::vector<std::string>& parts) const;
  void make_room() const;
  void remove_unfinished() noexcept;
  SaveReport report();

  Engine& engine_;
  Collectives& control_;
  SaveMemory& memory_;
  const CheckpointRequest request_;
  std::string final_, unfinished_, frozen_file_;
  std::unique_ptr<ShardSave> shard_;  ///< null where the checkpoint is there already
  /// What may be linked, then what was, or was written in its place.
  std::optional<FrozenShard> frozen_;
  bool is_linked_ = false;
  int link_error_ = 0;  ///< errno
  bool has_begun_commit_ = false;
  std::future<double> committed_;  ///< on the root
  double start_seconds_ = 0, stall_seconds_ = 0, copy_seconds_ = 0, commit_seconds_ = 0;
};

}  // namespace zea::detail
