// SPDX-License-Identifier: Apache-2.0
#include "watch/rank_report.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "core/text.hpp"

namespace zea {
namespace {

/// A message names so many ranks; the report has all of them.
constexpr size_t kNamed = 4;

using Ranks = std::vector<int>;

class Judge {
 public:
  Judge(const RankReports& reports, int num_ranks, double frozen_seconds)
      : reports_(reports), num_ranks_(num_ranks), frozen_seconds_(frozen_seconds) {
    waits_for_.resize(static_cast<size_t>(num_ranks), &nobody_);
    is_awaited_.resize(static_cast<size_t>(num_ranks));
    count_calls();
    for (const auto& [rank, report] : reports)
      if (is_rank(rank) && report.state.waits) find_awaited(rank, *report.state.waits);
  }

  HangVerdict verdict() const {
    HangVerdict verdict{find_behind(), {}};
    if (verdict.behind.empty()) {
      verdict.text = describe_cycle(verdict.behind);
      return verdict;
    }
    const size_t named = std::min(kNamed, verdict.behind.size());
    for (size_t i = 0; i < named; ++i)
      verdict.text += (i > 0 ? "; " : "") + describe(verdict.behind[i]);
    if (named < verdict.behind.size())
      verdict.text +=
          "; and " + std::to_string(verdict.behind.size() - named) + " more ranks are behind";
    verdict.text += describe_unknown();
    return verdict;
  }

 private:
  bool is_known(int rank) const { return reports_.count(rank) > 0; }

  bool is_silent(int rank) const {
    const RankReport& report = reports_.at(rank);
    return report.state.has_left || report.is_old || report.heartbeat_seconds() > frozen_seconds_;
  }

  /// Reports of other nodes' files may hold any number.
  bool is_rank(int rank) const { return rank >= 0 && rank < num_ranks_; }

  void count_calls() {
    for (const auto& [rank, report] : reports_)
      for (const auto& [group, calls] : report.state.calls_of_group)
        if (is_rank(rank)) calls_of_group_[group].emplace_back(rank, calls);
  }

  /// Thousands of ranks that wait for the same call share one list of the ranks that have not made
  /// it.
  void find_awaited(int rank, const RecordedWait& wait) {
    if (!wait.peers.empty()) {
      Ranks& peers = peers_[rank] = wait.peers;
      std::erase_if(peers, [this](int peer) { return !is_rank(peer); });
      std::sort(peers.begin(), peers.end());
      expect(rank, peers);
      return;
    }
    const auto [behind, is_new] = behind_.try_emplace({wait.group, wait.call});
    if (is_new)
      for (const auto& [other, calls] : calls_of_group_[wait.group])
        if (calls < wait.call) behind->second.push_back(other);
    expect(rank, behind->second, is_new);
  }

  void expect(int rank, const Ranks& awaited, bool is_new = true) {
    waits_for_[rank] = &awaited;
    if (!is_new) return;
    for (int other : awaited) is_awaited_[other] = true;
  }

  bool waits_for(int rank, int other) const {
    return rank != other &&
           std::binary_search(waits_for_[rank]->begin(), waits_for_[rank]->end(), other);
  }

  /// Returns the first rank that this one waits for; -1: none.
  int first_awaited(int rank) const {
    for (int other : *waits_for_[rank])
      if (other != rank) return other;
    return -1;
  }

  bool waits(int rank) const { return reports_.at(rank).state.waits.has_value(); }

  /// Returns the ranks that do not run; where all do, those that are not in a communication; where
  /// nobody waits for these, the unknown ones as well.
  std::vector<int> find_behind() const {
    std::vector<int> silent, busy, unknown;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (!is_known(rank))
        unknown.push_back(rank);
      else if (is_silent(rank))
        silent.push_back(rank);
      else if (!waits(rank))
        busy.push_back(rank);
    }
    if (!silent.empty()) return silent;
    // A rank that nobody waits for may be right where it is.
    std::vector<int> awaited;
    for (int rank : busy)
      if (is_awaited_[rank]) awaited.push_back(rank);
    if (!awaited.empty()) return awaited;
    busy.insert(busy.end(), unknown.begin(), unknown.end());
    return busy;
  }

  /// Says what to look at where there are unknown ranks.
  std::string describe_unknown() const {
    int unknown = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) unknown += !is_known(rank);
    if (unknown == 0) return "";
    return "; " + std::to_string(unknown) + " of " + std::to_string(num_ranks_) +
           " ranks were never heard of: nodes exchange heartbeats in the run directory, which they "
           "must share";
  }

  std::vector<int> waiting_for(int rank) const {
    std::vector<int> ranks;
    for (int other = 0; other < num_ranks_; ++other)
      if (waits_for(other, rank)) ranks.push_back(other);
    return ranks;
  }

  std::string doing(int rank) const {
    const RankReport& report = reports_.at(rank);
    std::string text;
    for (const RecordedSpan& span : report.state.open)
      text += (text.empty() ? "" : ", in it ") + span.name;
    if (text.empty()) text = report.current();
    text += formatted(" (for %.1f s)", report.current_seconds());
    if (report.state.on_device) text += ", its device in " + report.state.on_device->name;
    return text;
  }

  std::string describe(int rank) const {
    const std::string name = "rank " + std::to_string(rank);
    const auto found = reports_.find(rank);
    if (found == reports_.end())
      return name + " is behind: nothing is known of it, its node does not answer";
    std::string text = name + " (" + found->second.host + ", process " +
                       std::to_string(found->second.state.process) + ", step " +
                       std::to_string(found->second.state.step) + ") is behind: ";
    if (found->second.state.has_left)
      text += "it has left the run";
    else if (found->second.is_old)
      text += "its node does not answer any more (stopped, or dead); its last report was " +
              doing(rank);
    else
      text += (is_silent(rank) ? "its process does not run (stopped, or dead); it was in "
                               : "it is in ") +
              doing(rank);
    const std::vector<int> waiting = waiting_for(rank);
    if (waiting.empty()) return text;
    return text + "; " + std::to_string(waiting.size()) +
           (waiting.size() == 1 ? " rank waits for it, rank "
                                : " ranks wait for it, the first is rank ") +
           std::to_string(waiting.front()) + " in " + doing(waiting.front());
  }

  /// Describes a hang in which every rank is in a communication: ranks that wait for each
  /// other, or a communication that all have entered. Sets `ring` to the ranks that wait for
  /// each other.
  std::string describe_cycle(std::vector<int>& ring) const {
    int first = 0;
    while (first < num_ranks_ && first_awaited(first) < 0) ++first;
    if (first == num_ranks_)
      return "every rank has entered the communication that it waits for, which does not end: a "
             "fault of the network, or ranks that disagree on its size; rank 0 is in " +
             doing(0);
    // Follows the waits from any rank until one comes again or waits for nobody.
    Ranks path = {first};
    for (int next; (next = first_awaited(path.back())) >= 0; path.push_back(next))
      if (const auto again = std::find(path.begin(), path.end(), next); again != path.end()) {
        ring.assign(again, path.end());
        break;
      }
    if (ring.empty()) {
      ring = {path.back()};
      return describe(path.back());
    }
    std::string text = "ranks wait for each other: ";
    for (size_t i = 0; i < std::min(kNamed, ring.size()); ++i)
      text += (i > 0 ? "; " : "") + ("rank " + std::to_string(ring[i])) + " for rank " +
              std::to_string(ring[(i + 1) % ring.size()]) + " in " + doing(ring[i]);
    return text;
  }

  const RankReports& reports_;
  const int num_ranks_;
  const double frozen_seconds_;
  /// The ranks of each group in order, with the calls that they have made.
  std::map<std::string, std::vector<std::pair<int, int64_t>>> calls_of_group_;
  std::map<std::pair<std::string, int64_t>, Ranks> behind_;  ///< by call of a group
  std::map<int, Ranks> peers_;                               ///< named by a rank itself
  const Ranks nobody_;
  std::vector<const Ranks*> waits_for_;  ///< of each rank, in order; it may be among them itself
  std::vector<bool> is_awaited_;         ///< each rank, by anybody; one that waits, maybe by itself
};

}  // namespace

HangVerdict judge_hang(const RankReports& reports, int num_ranks, double frozen_seconds) {
  return Judge(reports, num_ranks, frozen_seconds).verdict();
}

}  // namespace zea
