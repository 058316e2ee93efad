// SPDX-License-Identifier: Apache-2.0
#include "train/interval_facts.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace zea {
namespace {

/// In order, beside a rank's seconds.
constexpr std::array kBytes = {&DeviceMemory::allocated, &DeviceMemory::peak_allocated,
                               &DeviceMemory::reserved,  &DeviceMemory::peak_reserved,
                               &DeviceMemory::requested, &DeviceMemory::peak_requested};

}  // namespace

void IntervalFacts::tell(double own_seconds, const std::optional<DeviceMemory>& memory) {
  ZEA_ASSERT(!are_told());
  has_memory_ = memory.has_value();
  own_ = {own_seconds};
  for (const auto bytes : kBytes)
    if (memory) own_.push_back(static_cast<double>((*memory).*bytes));  // exact below 2^53
  all_.resize(own_.size() * static_cast<size_t>(control_.size()));
  pending_ = control_.all_gather(own_.data(), all_.data(),
                                 Counts(control_.size(), std::ssize(own_)), DType::Float64);
}

IntervalFacts::OfRanks IntervalFacts::hear() {
  pending_.wait();
  OfRanks heard;
  if (has_memory_) heard.most.emplace();
  for (size_t at = 0; at < all_.size(); at += own_.size()) {
    heard.own_seconds.push_back(all_[at]);
    for (size_t i = 0; heard.most && i < kBytes.size(); ++i) {
      int64_t& most = (*heard.most).*kBytes[i];
      most = std::max(most, static_cast<int64_t>(all_[at + 1 + i]));
    }
  }
  all_.clear();
  return heard;
}

}  // namespace zea
