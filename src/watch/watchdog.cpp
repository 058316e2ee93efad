// SPDX-License-Identifier: Apache-2.0
#include "watch/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "watch/hang_report.hpp"
#include "watch/hang_verdict.hpp"

namespace zea {
namespace {

// After the deadline files may take so long; then the job ends without them.
constexpr double kLookSeconds = 2.5;
constexpr auto kReportTime = std::chrono::milliseconds(3000);
/// Of which so much is for another node's report.
constexpr double kOthersReportSeconds = 2.5;
/// And when that is there the other node has so long to say it and to end the job.
constexpr auto kOthersEndTime = std::chrono::seconds(1);

/// Every node may say it where files fail, into one log.
constexpr size_t kMostToldBytes = size_t{256} << 10;

// Of the deadline: how often nodes tell something, and look what the others told; and how long one
// that lives can be silent.
constexpr double kPublish = 0.2;
constexpr double kUnheard = 0.45;

RankReports reports_of(const NodeMemory& memory) {
  RankReports reports;
  for (size_t i = 0; i < memory.ranks().size(); ++i) {
    const RankState state = read_rank_state(memory.of(i));
    reports[memory.ranks()[i]] = {host_name(), clock_nanoseconds(), state};
  }
  return reports;
}

int64_t moves_of(const NodeMemory& memory) {
  int64_t moves = 0;
  for (size_t i = 0; i < memory.ranks().size(); ++i) moves += read_moves(memory.of(i));
  return moves;
}

}  // namespace

Watchdog::Watchdog(const NodeMemory& memory, ActionRecord& record, WatchdogOptions options)
    : memory_(memory),
      record_(record),
      options_(std::move(options)),
      directory_(options_.directory + "/watchdog"),
      period_(std::clamp(options_.deadline_seconds / 20, 0.02, 1.0)),
      frozen_seconds_(std::clamp(options_.deadline_seconds / 2, 0.5, 3.0)) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  stopping_.notify_all();
  thread_.join();
  record_.leave();
}

void Watchdog::clear_directory() const {
  remove_news(directory_);
}

void Watchdog::use_directory() {
  if (has_others() && is_first_of_node())
    write_news(directory_, own_node(),
               {.moves = moves_of(memory_),
                .told_at = calendar_seconds(),
                .reports = reports_of(memory_)});
  uses_directory_ = true;
}

bool Watchdog::sees_first_node() const {
  return !has_others() || !is_first_of_node() || has_news(directory_, memory_.nodes().front());
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  auto last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, std::chrono::duration<double>(period_),
                             [this] { return is_stopped_; })) {
    lock.unlock();
    const auto now = Clock::now();
    // A job that was suspended as a whole has not hung meanwhile.
    const double seconds = std::min(std::chrono::duration<double>(now - last).count(), 2 * period_);
    last = now;
    const bool is_over = tick(seconds);
    lock.lock();
    if (is_over) return;
  }
}

/// Whether the run was given up.
bool Watchdog::tick(double seconds) {
  record_.beat();
  if (gives_up_device(seconds)) return true;
  const int64_t moves = moves_of(memory_);
  const bool moved = moves != moves_, was_still = stands_still();
  moves_ = moves;
  still_ = moved ? 0 : still_ + seconds;
  since_publish_ += seconds;
  since_look_ += seconds;
  for (auto& [node, news] : others_) news.unheard += seconds;
  if (!speaks()) return false;
  const bool exchanges = has_others() && uses_directory_;
  // The others have looked for what is new since half of the deadline.
  if (exchanges) exchange_news(moved && was_still);
  if (still_ < options_.deadline_seconds) {
    overdue_ = 0;
    has_looked_ = false;
    return false;
  }
  overdue_ += seconds;
  if (exchanges && !has_looked_ && overdue_ < kLookSeconds) return false;
  tell();
  return true;
}

/// A host that waits for its device is not told by it that a communication failed. One that is
/// not in such a wait throws by itself, and has this long to do so.
bool Watchdog::gives_up_device(double seconds) {
  try {
    record_.look_at_device();
    device_failed_ = 0;
  } catch (const CommError& error) {
    device_failed_ += seconds;
    if (device_failed_ < frozen_seconds_) return false;
    options_.give_up("rank " + std::to_string(memory_.own_rank()) + ": " + error.what());
    return true;
  }
  return false;
}

/// One rank of a node speaks for it: the lowest whose threads run.
bool Watchdog::speaks() const {
  const int64_t now = clock_nanoseconds();
  for (size_t i = 0; memory_.of(i) != memory_.own(); ++i)
    if (1e-9 * static_cast<double>(now - read_heartbeat(memory_.of(i))) < frozen_seconds_)
      return false;
  return true;
}

NodeNews Watchdog::own_news() const {
  return {.published = published_,
          .moves = moves_,
          .still = still_,
          .told_at = calendar_seconds(),
          .reports = reports_of(memory_)};
}

/// Tells and looks, each where it is time and the last one has come back.
void Watchdog::exchange_news(bool is_new) {
  const bool publishes = publishing_.valid() && !is_ready(publishing_);
  if (!publishes && (is_new || since_publish_ >= kPublish * options_.deadline_seconds)) {
    since_publish_ = 0;
    ++published_;
    // That it fails is not looked at: a disk that is full for this is full for checkpoints, which
    // tell.
    publishing_ = errands_.post([directory = directory_, node = own_node(), news = own_news()] {
      write_news(directory, node, news);
    });
  }
  if (is_ready(look_)) {
    take_news(look_.get());
    has_looked_ = looks_overdue_;
  }
  const bool is_overdue = still_ >= options_.deadline_seconds;
  if (look_.valid() || (since_look_ < look_seconds() && (!is_overdue || has_looked_))) return;
  last_span_ = std::exchange(since_look_, 0);
  looks_overdue_ = is_overdue;
  std::vector<int> nodes = memory_.nodes();
  std::erase(nodes, own_node());
  if (!stands_still()) {
    look_ = errands_.post([directory = directory_, nodes] { return read_heads(directory, nodes); });
    return;
  }
  std::map<int, int64_t> known;
  for (const auto& [node, news] : others_) known[node] = news.reported;
  look_ = errands_.post(
      [directory = directory_, nodes, known] { return read_news(directory, nodes, known); });
}

/// Seldom while the run goes on.
double Watchdog::look_seconds() const {
  const double seldom = kPublish * options_.deadline_seconds;
  if (!stands_still()) return seldom;
  return std::min(seldom, 4 + 0.05 * static_cast<double>(memory_.nodes().size()));
}

/// Another node that went on since the last look makes up for this one standing still.
void Watchdog::take_news(std::map<int, NodeNews>&& seen) {
  for (auto& [node, news] : seen) {
    const auto [last, is_first] = others_.emplace(node, news);
    NodeNews& known = last->second;
    if (!is_first && news.reported < 0) {
      news.reports = std::move(known.reports);
      news.reported = known.reported;
    }
    if (!is_first && known.published == news.published) {
      news.unheard = known.unheard;
      known = std::move(news);
      continue;
    }
    // The news came after the look before this one, whatever the calendars say.
    const double age = std::clamp(calendar_seconds() - news.told_at, 0.0, last_span_ + since_look_);
    if (is_first || known.moves != news.moves) still_ = std::min(still_, news.still + age);
    known = std::move(news);
  }
}

/// Of all ranks that anything is known of.
RankReports Watchdog::all_reports() const {
  RankReports reports = reports_of(memory_);
  for (const auto& [node, news] : others_)
    for (const auto& [rank, report] : news.reports) {
      reports[rank] = report;
      reports[rank].is_old = news.unheard > kUnheard * options_.deadline_seconds;
    }
  return reports;
}

void Watchdog::tell() {
  const RankReports reports = all_reports();
  const HangVerdict verdict = judge_hang(reports, options_.num_ranks, frozen_seconds_);
  const std::string message = "the run hangs: for " + formatted("%g", options_.deadline_seconds) +
                              " s (run.watchdog_seconds) nothing began or ended on any rank. " +
                              verdict.text + ". ";
  std::string all;
  for (const auto& [rank, state] : reports) all += "\n" + describe_report(rank, state);
  std::vector<int> first = verdict.behind;
  first.insert(first.end(), memory_.ranks().begin(), memory_.ranks().end());
  options_.give_up(report(message, all, describe_some(reports, first, kMostToldBytes)));
}

/// The message for people, after all that is known is in a file, or with `some` of it where that
/// cannot be.
std::string Watchdog::report(const std::string& message, const std::string& all,
                             const std::string& some) const {
  const std::string path = hang_report_path(directory_);
  const std::string last =
      "The last " + std::to_string(kRecordedActions) + " actions and communications of ";
  const std::string what = last + "every rank ";
  const auto follow = [&](const std::string& why) {
    return message + last + "ranks that are behind, and of this node's, follow, since " + why +
           ":\n" + some;
  };
  if (!uses_directory_) return follow("the run directory is not open yet");
  // Errands of the news may hang.
  Errands beside;
  std::future<HangReport> writing =
      beside.post([directory = directory_, text = message + "\n" + all] {
        return write_hang_report(directory, text, kOthersReportSeconds);
      });
  if (writing.wait_for(kReportTime) != std::future_status::ready)
    return follow(path + " cannot be written: the file system does not answer");
  try {
    switch (writing.get()) {
      case HangReport::Written:
        return message + what + "are in " + path;
      case HangReport::ByAnother:
        std::this_thread::sleep_for(kOthersEndTime);
        return "the run hangs, as another node has told. " + what + "are in " + path;
      case HangReport::HalfWritten:
        break;
    }
  } catch (const StorageError& error) {
    return follow(error.what());
  }
  return follow("another node began to write " + path + " and did not come to its end");
}

std::jthread limit_start(double seconds, std::function<void(const std::string& message)> give_up) {
  return std::jthread([seconds, give_up = std::move(give_up)](const std::stop_token& over) {
    std::mutex mutex;
    std::condition_variable_any stopping;
    std::unique_lock lock(mutex);
    stopping.wait_for(lock, over, std::chrono::duration<double>(seconds), [] { return false; });
    if (!over.stop_requested())
      give_up("the run hangs: " + formatted("%g", seconds) +
              " s after it began, not every rank has read the deck and opened the weights or the "
              "checkpoint that it names");
  });
}

}  // namespace zea
