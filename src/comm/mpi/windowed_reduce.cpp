// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/windowed_reduce.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/reduce_elements.hpp"

namespace zea {
namespace {

constexpr int64_t kWindowBytes = 4 << 20;
/// Of two windows from every rank, where there are many.
constexpr int64_t kMemoryBytes = 64 << 20;
constexpr int64_t kLeastWindowBytes = 64 << 10;
/// Bounds windows in tests that make messages small.
constexpr int64_t kMaxMessages = 16;

}  // namespace

WindowedReduce::WindowedReduce(const Channel& channel, int rank, Job job, HostWork& work)
    : channel_(channel), rank_(rank), job_(std::move(job)), displacements_(job_.counts.size()) {
  std::exclusive_scan(job_.counts.begin(), job_.counts.end(), displacements_.begin(), int64_t{0});
  const int64_t longest = *std::max_element(job_.counts.begin(), job_.counts.end());
  const auto ranks = static_cast<int64_t>(job_.counts.size());
  const int64_t bytes = std::clamp(kMemoryBytes / (2 * ranks), kLeastWindowBytes, kWindowBytes);
  const int64_t fits = bytes / static_cast<int64_t>(element_bytes(job_.dtype));
  window_elements_ =
      std::max<int64_t>(1, std::min({longest, fits, kMaxMessages * channel.max_elements}));
  num_windows_ = (longest + window_elements_ - 1) / window_elements_;
  const int64_t windows_in_memory = std::min<int64_t>(2, num_windows_);
  memory_ = reinterpret_cast<char*>(work.scratch(windows_in_memory * job_.counts.size() *
                                                 window_elements_ * element_bytes(job_.dtype)));
}

WindowedReduce::Cut WindowedReduce::cut(int rank, int64_t window) const {
  const int64_t first = window * window_elements_;
  return {first, std::clamp<int64_t>(job_.counts[rank] - first, 0, window_elements_)};
}

char* WindowedReduce::piece(int rank, int64_t first) const {
  return job_.data +
         (displacements_[rank] + first) * static_cast<int64_t>(element_bytes(job_.dtype));
}

char* WindowedReduce::received(int rank, int64_t window) const {
  const int64_t slot = window % 2 * static_cast<int64_t>(job_.counts.size()) + rank;
  return memory_ + slot * window_elements_ * static_cast<int64_t>(element_bytes(job_.dtype));
}

void WindowedReduce::post(HostWork& work, int64_t window) const {
  if (window >= num_windows_) return;
  const int size = static_cast<int>(job_.counts.size());
  for (int step = 1; step < size; ++step) {
    const int source = (rank_ - step + size) % size;
    post_receive(work, channel_, received(source, window), cut(rank_, window).count, job_.dtype,
                 source);
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank_ + step) % size;
    const Cut sent = cut(peer, window);
    post_send(work, channel_, piece(peer, sent.first), sent.count, job_.dtype, peer);
  }
}

void WindowedReduce::combine(int64_t window) const {
  const Cut own = cut(rank_, window);
  if (own.count == 0) return;
  std::vector<const void*> parts;
  for (int r = 0; r < static_cast<int>(job_.counts.size()); ++r)
    parts.push_back(r == rank_ ? piece(r, own.first) : received(r, window));
  char* result =
      static_cast<char*>(job_.result) + own.first * static_cast<int64_t>(element_bytes(job_.dtype));
  reduce_elements(parts, result, own.count, job_.dtype, job_.op);
}

}  // namespace zea
