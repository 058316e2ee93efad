// SPDX-License-Identifier: Apache-2.0
#include "train/train_report.hpp"

#include <algorithm>
#include <utility>

#include "comm/agree.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

constexpr int64_t kLeastTold = (1 << 20) / 100;  ///< two decimals of a MiB

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

MemoryWatch::MemoryWatch(TensorBytes& bytes, Engine& engine, const SampleTable& index)
    : bytes_(bytes), engine_(engine), index_(index) {}

// Every rank estimates its own part; the first rank of a stage group reports, as all ranks there
// are alike.
std::optional<std::string> MemoryWatch::predict(const RankStep& step, Collectives& control) {
  if (has_predicted_) return std::nullopt;
  has_predicted_ = true;
  const Plan& plan = engine_.plan();
  const int64_t rank = engine_.world_rank();
  const StageGroup& group = plan.pipeline.stage_groups[plan.group_of(engine_.world_rank())];
  MemoryEstimate own;
  if (plan.rank_in_replica(engine_.world_rank()) == group.first_rank)
    own = estimate_memory(plan, engine_.world_rank(), step.microbatches, index_);
  int64_t most = own.total();
  control.all_reduce(&most, 1, DType::Int64, ReduceOp::Max).wait();
  int64_t speaker = own.total() == most ? rank : plan.world_size();
  control.all_reduce(&speaker, 1, DType::Int64, ReduceOp::Min).wait();
  const std::string text = speaker != rank ? ""
                                           : "bytes in step " + std::to_string(step.step + 1) +
                                                 " on the rank that needs most: " + describe(own);
  return all_gather_texts(control, text)[static_cast<size_t>(speaker)];
}

void MemoryWatch::begin_step() {
  bytes_.reset_peak();
  note_device_peaks();
  const std::optional<DeviceMemory> memory = device_memory(device());
  if (!memory) return;
  if (before_steps_ && !kept_) kept_ = std::max<int64_t>(0, memory->requested - *before_steps_);
  if (!before_steps_) before_steps_ = memory->requested;
}

int64_t MemoryWatch::counted_peak() const {
  if (device().is_cpu()) return bytes_.peak() + engine_.ledger().shared_bytes();
  const std::optional<DeviceMemory> memory = device_memory(device());
  return memory ? memory->peak_requested : 0;
}

/// Takes the device's peaks, which begin anew.
void MemoryWatch::note_device_peaks() {
  if (const std::optional<DeviceMemory> memory = device_memory(device())) {
    peak_allocated_ = std::max(peak_allocated_, memory->peak_allocated);
    peak_reserved_ = std::max(peak_reserved_, memory->peak_reserved);
  }
  reset_device_peaks(device());
}

std::optional<DeviceMemory> MemoryWatch::take_device_memory() {
  note_device_peaks();
  std::optional<DeviceMemory> own = device_memory(device());
  if (!own) return std::nullopt;
  own->peak_allocated = std::exchange(peak_allocated_, 0);
  own->peak_reserved = std::exchange(peak_reserved_, 0);
  return own;
}

void MemoryWatch::end_step(const RankStep& step) {
  const int64_t peak = counted_peak();
  if (peak <= peak_) return;
  peak_ = peak;
  step_ = step.step;
  predicted_ =
      estimate_memory(engine_.plan(), engine_.world_rank(), step.microbatches, index_).total();
}

std::string MemoryWatch::summary() const {
  if (peak_ == 0) return "";
  const int64_t kept = kept_.value_or(0);
  std::string line =
      formatted("peak of all tensors on rank %d, in step %ld: predicted %.2f MiB, counted %.2f MiB",
                engine_.world_rank(), static_cast<long>(step_ + 1), mebibytes(predicted_),
                mebibytes(peak_ - kept));
  if (kept >= kLeastTold)
    line += formatted(
        ", beside %.2f MiB that the first step left on the device (workspaces of "
        "libraries)",
        mebibytes(kept));
  return line;
}

}  // namespace zea
