// SPDX-License-Identifier: Apache-2.0
// Vector clocks (Mattern 1989): what has happened before what, among the streams of a device and
// the host. Everything is known when it is put into a stream, so what they say depends on no
// timing.
#pragma once

#include <cstdint>
#include <map>

namespace zea::testing {

/// The host, among the actors; streams are counted from 0.
inline constexpr int kHost = -1;

class Clock {
 public:
  /// One more thing of `actor`; gives its time.
  int64_t tick(int actor) { return ++times_[actor]; }
  /// What `other` has seen has been seen.
  void merge(const Clock& other) {
    for (const auto& [actor, time] : other.times_) times_[actor] = std::max(times_[actor], time);
  }
  /// Whether what `actor` did at `time` has been seen.
  bool has_seen(int actor, int64_t time) const {
    const auto found = times_.find(actor);
    return found != times_.end() && found->second >= time;
  }

 private:
  std::map<int, int64_t> times_;
};

}  // namespace zea::testing
