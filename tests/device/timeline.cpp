// SPDX-License-Identifier: Apache-2.0
#include "device/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace zea::testing {
namespace {

using nlohmann::json;

constexpr double kSame = 1e-12;  // seconds

bool is_same(double a, double b) {
  return std::abs(a - b) < kSame;
}

std::string name_of(const TimedWork& work) {
  return work.group.empty() ? work.name : work.group + " " + work.name;
}

/// Goes back from a time of a rank to what ended then.
class PathBack {
 public:
  explicit PathBack(const Timelines& timelines) : timelines_(timelines) {}

  std::map<std::string, double> run() {
    for (size_t rank = 0; rank < timelines_.size(); ++rank)
      for (const TimedWork& work : timelines_[rank])
        if (work.end > time_) {
          time_ = work.end;
          rank_ = rank;
        }
    while (time_ > kSame) step(last_end());
    return std::move(seconds_);
  }

 private:
  /// The work of the rank that ended last until now. Of several computation goes first: what ends
  /// with it waited for it.
  const TimedWork& last_end() const {
    const TimedWork* last = nullptr;
    for (const TimedWork& work : timelines_[rank_]) {
      if (work.waits || work.end > time_ + kSame || work.end - work.begin < kSame) continue;
      const bool is_later = last == nullptr || work.end > last->end + kSame;
      if (is_later || (is_same(work.end, last->end) && work.group.empty())) last = &work;
    }
    if (last == nullptr) throw std::logic_error("nothing ends before a time of the critical path");
    return *last;
  }

  void step(const TimedWork& work) {
    if (!is_same(work.end, time_)) seconds_["nothing"] += time_ - work.end;
    seconds_[name_of(work)] += work.end - work.met;
    time_ = work.met;
    if (is_same(work.met, work.begin)) return;
    for (size_t rank = 0; rank < timelines_.size(); ++rank)
      for (const TimedWork& other : timelines_[rank])
        if (other.group == work.group && is_same(other.begin, work.met)) {
          rank_ = rank;
          return;
        }
    throw std::logic_error("no rank was the last to begin " + name_of(work));
  }

  const Timelines& timelines_;
  size_t rank_ = 0;
  double time_ = 0;
  std::map<std::string, double> seconds_;
};

}  // namespace

Timelines gathered(const Communicator& ranks, const std::vector<TimedWork>& own) {
  json list = json::array();
  for (const TimedWork& work : own)
    list.push_back(
        {work.name, work.group, work.stream, work.waits, work.begin, work.met, work.end});
  const std::string text = list.dump();
  std::vector<int> sizes(static_cast<size_t>(ranks.size())), offsets(sizes.size());
  const int size = static_cast<int>(text.size());
  MPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, ranks.handle());
  for (size_t rank = 1; rank < sizes.size(); ++rank)
    offsets[rank] = offsets[rank - 1] + sizes[rank - 1];
  std::string all(static_cast<size_t>(offsets.back() + sizes.back()), 0);
  MPI_Gatherv(text.data(), size, MPI_CHAR, all.data(), sizes.data(), offsets.data(), MPI_CHAR, 0,
              ranks.handle());
  Timelines timelines;
  for (size_t rank = 0; rank < sizes.size() && ranks.rank() == 0; ++rank) {
    std::vector<TimedWork>& there = timelines.emplace_back();
    for (const json& work : json::parse(
             all.substr(static_cast<size_t>(offsets[rank]), static_cast<size_t>(sizes[rank]))))
      there.push_back({work[0], work[1], work[2], work[3], work[4], work[5], work[6]});
  }
  return timelines;
}

std::string chrome_trace(const Timelines& timelines) {
  json events = json::array();
  constexpr double kMicroseconds = 1e6;
  for (size_t rank = 0; rank < timelines.size(); ++rank)
    for (const TimedWork& work : timelines[rank])
      events.push_back({{"name", name_of(work)},
                        {"ph", "X"},
                        {"pid", rank},
                        {"tid", work.stream},
                        {"ts", work.begin * kMicroseconds},
                        {"dur", (work.end - work.begin) * kMicroseconds},
                        {"args", {{"waits for ranks", (work.met - work.begin) * kMicroseconds}}}});
  return json{{"traceEvents", events}}.dump();
}

std::map<std::string, double> exposed_seconds(const std::vector<TimedWork>& work) {
  std::map<std::string, double> seconds;
  for (const TimedWork& one : work)
    if (one.waits && one.stream == 0) seconds[one.group] += one.end - one.begin;
  return seconds;
}

std::map<std::string, double> critical_path(const Timelines& timelines) {
  return PathBack(timelines).run();
}

}  // namespace zea::testing
