// SPDX-License-Identifier: Apache-2.0
#include "train/train_step.hpp"

#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "parallel/slots.hpp"

namespace zea {
namespace {

constexpr int64_t kValues = std::tuple_size_v<StepSumValues>;
constexpr int64_t kLoss = offsetof(StepSums, loss) / sizeof(double),
                  kMtpLoss = offsetof(StepSums, mtp_loss) / sizeof(double),
                  kTargets = offsetof(StepSums, targets) / sizeof(double),
                  kSquares = offsetof(StepSums, squares) / sizeof(double);

at::Tensor pinned_values() {
  return at::empty({kValues}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
}

c10::Event timed_event(at::Device device) {
  return {device.type(), c10::EventFlag::BACKEND_DEFAULT};
}

}  // namespace

DeviceStepEnd::DeviceStepEnd(Collectives& world, at::Device device, double clip_norm)
    : world_(world),
      device_(device),
      clip_norm_(clip_norm),
      sent_(pinned_values()),
      received_(pinned_values()),
      next_(timed_event(device)),
      begun_(timed_event(device)),
      ended_(timed_event(device)) {}

void DeviceStepEnd::begin() {
  next_.record(current_stream(device_));
}

void DeviceStepEnd::sum(const StepSums& own, const StepLoss& loss, const at::Tensor& squares) {
  const auto values = std::bit_cast<StepSumValues>(own);
  std::memcpy(sent_.mutable_data_ptr(), values.data(), sizeof values);
  const at::Tensor sums = sent_.to(device_, /*non_blocking=*/true);
  if (loss.all.defined()) sums[kLoss].copy_(loss.all);
  if (loss.mtp.defined()) sums[kMtpLoss].copy_(loss.mtp);
  sums[kSquares].copy_(squares);
  // A rank alone has no collectives of the device.
  if (world_.size() > 1)
    world_.all_reduce(sums.mutable_data_ptr(), kValues, DType::Float64, ReduceOp::Sum).wait();
  received_.copy_(sums, /*non_blocking=*/true);
  scale_ = scale_of(sums);
}

/// Computes operation by operation what TrainStep computes on the host, to the same bits.
at::Tensor DeviceStepEnd::scale_of(const at::Tensor& sums) const {
  const at::Tensor targets = sums[kTargets], norm = sums[kSquares].sqrt().div_(targets);
  at::Tensor factor = at::ones_like(norm);
  if (clip_norm_ > 0) factor = (factor * clip_norm_).div_(norm + kClipEps).clamp_max_(1);
  // 0 times a number that is not finite is NaN.
  return factor.div_(targets).add_(norm * 0).add_(sums[kLoss] * 0);
}

void DeviceStepEnd::end() {
  std::swap(next_, begun_);
  ended_.record(current_stream(device_));
}

DeviceStepEnd::Result DeviceStepEnd::wait() {
  ended_.synchronize();
  StepSumValues values;
  std::memcpy(values.data(), received_.const_data_ptr(), sizeof values);
  return {std::bit_cast<StepSums>(values), 1e-3 * begun_.elapsedTime(ended_)};
}

}  // namespace zea
