// SPDX-License-Identifier: Apache-2.0
// Vector clocks (Mattern 1989): the order of events among the streams of a device and the host. All
// orders are known when work is put into a stream, so they depend on no timing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace zea::testing {

/// The host, among the actors; streams are counted from 0.
inline constexpr int kHost = -1;

class Clock {
 public:
  /// One more thing of `actor`; gives its time.
  int64_t tick(int actor) {
    const size_t place = place_of(actor);
    if (place >= times_.size()) times_.resize(place + 1);
    return ++times_[place];
  }
  /// Marks everything that `other` has seen as seen.
  void merge(const Clock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i)
      times_[i] = std::max(times_[i], other.times_[i]);
  }
  /// Returns whether the work of `actor` at `time` has been seen.
  bool has_seen(int actor, int64_t time) const {
    const size_t place = place_of(actor);
    return place < times_.size() && times_[place] >= time;
  }

 private:
  static size_t place_of(int actor) { return static_cast<size_t>(actor - kHost); }

  std::vector<int64_t> times_;  ///< of the host and of each stream; 0: of nothing yet
};

}  // namespace zea::testing
