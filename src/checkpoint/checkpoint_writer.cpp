// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_writer.hpp"

#include <chrono>
#include <utility>

#include "checkpoint/checkpoint_save.hpp"
#include "checkpoint/slow_wait.hpp"
#include "comm/agree.hpp"
#include "core/error.hpp"
#include "io/checkpoint.hpp"
#include "io/retention.hpp"

namespace zea {

CheckpointWriter::CheckpointWriter(Engine& engine, Collectives& control)
    : engine_(engine), control_(control), memory_(std::make_unique<detail::SaveMemory>()) {
  ZEA_ASSERT(control.rank() == engine.world_rank() && control.size() == engine.plan().world_size());
}

CheckpointWriter::~CheckpointWriter() = default;

/// On the root: its room may be needed, and its names.
void CheckpointWriter::wait_for_removal() {
  if (!removal_.valid()) return;
  ActionRecord& record = engine_.mesh().record();
  const ActionRecord::Action action(record, "remove old checkpoints");
  detail::wait_while_slow(
      record,
      [&] { return removal_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; },
      [&] { return removed_files_.load(); });
  try {
    removal_.get();
  } catch (const StorageError& error) {
    removal_fault_ = error.what();
  }
}

std::string CheckpointWriter::removal_fault() {
  return std::exchange(removal_fault_, "");
}

void CheckpointWriter::keep_newest(const std::string& directory, int64_t keep) {
  agree_on_root(control_, [&] {
    wait_for_removal();
    RetiredCheckpoints retired =
        retire_all_but_newest(directory, keep, [this] { engine_.mesh().record().moved(); });
    if (!retired.fault.empty()) removal_fault_ = retired.fault;
    removal_ = std::async(std::launch::async, [this, directories = std::move(retired.directories)] {
      detail::step_back(detail::kWaitingNice);
      remove_retired(directories, [this] { ++removed_files_; });
    });
  });
}

void CheckpointWriter::finish_removal() {
  agree_on_root(control_, [&] { wait_for_removal(); });
}

void CheckpointWriter::starts_from(const WeightsSource& source) {
  const detail::FrozenOrigin& origin = memory_->origin.emplace(engine_.plan(), source);
  if (const auto* checkpoint = dynamic_cast<const CheckpointSource*>(&source))
    memory_->frozen = detail::find_frozen_shard(engine_, origin, *checkpoint);
}

void CheckpointWriter::start(const CheckpointRequest& request) {
  ZEA_ASSERT(!save_);
  agree_on_root(control_, [&] { wait_for_removal(); });
  auto save = std::make_unique<detail::CheckpointSave>(engine_, control_, *memory_, request);
  save->start();
  save_ = std::move(save);
}

bool CheckpointWriter::is_writing() const {
  return save_ && save_->is_writing();
}

void CheckpointWriter::keep_values() {
  if (save_) save_->keep_values();
}

bool CheckpointWriter::advance() {
  ZEA_ASSERT(save_);
  std::unique_ptr<detail::CheckpointSave> save = std::move(save_);  // gone where this throws
  const bool has_more = save->advance();
  save_ = std::move(save);
  return has_more;
}

SaveReport CheckpointWriter::finish() {
  ZEA_ASSERT(save_);
  const std::unique_ptr<detail::CheckpointSave> save = std::move(save_);
  return save->finish();
}

std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request) {
  CheckpointWriter writer(engine, control);
  writer.start(request);
  return writer.finish().path;
}

}  // namespace zea
