// SPDX-License-Identifier: Apache-2.0
#include "watch/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "watch/unanswered.hpp"

namespace zea {
namespace {

// After the deadline files may take so long; then the job ends without them.
constexpr double kLookSeconds = 2.5;
constexpr auto kReportTime = std::chrono::milliseconds(3000);
/// Part of it for another node's report.
constexpr double kOthersReportSeconds = 2.5;
/// After that the other node has so long to print its message and to end the job.
constexpr auto kOthersEndTime = std::chrono::seconds(1);

/// Where files fail, every node may print so much into one log.
constexpr size_t kMostToldBytes = size_t{256} << 10;

// Shares of the deadline: how often nodes write and read heartbeats, and the largest age of one of
// a node that lives.
constexpr double kPublish = 0.2;
constexpr double kUnheard = 0.45;
/// Fraction of the deadline after which a warning names a node that does not answer.
constexpr double kSuspicion = 0.1;

/// Runs `work` in a thread that nobody waits for: a file system may block it for ever. It refers to
/// nothing but what it holds itself.
template <class Work>
auto run_detached(Work work) -> std::future<decltype(work())> {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

template <class Result>
bool is_ready(const std::future<Result>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

RankReports reports_of(const NodeMemory& memory) {
  RankReports reports;
  for (size_t i = 0; i < memory.ranks().size(); ++i) {
    const RankState state = read_rank_state(memory.of(i));
    reports[memory.ranks()[i]] = {host_name(), clock_nanoseconds(), state};
  }
  return reports;
}

std::string sentence_of(const std::string& text) {
  return text.empty() ? "" : text + ". ";
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
  remove_heartbeats(directory_);
}

void Watchdog::use_directory() {
  if (has_others() && is_first_of_node())
    write_heartbeat(directory_, own_node(),
                    {.moves = moves_of(memory_),
                     .written_at = calendar_seconds(),
                     .reports = reports_of(memory_)});
  uses_directory_ = true;
}

bool Watchdog::sees_first_node() const {
  return !has_others() || !is_first_of_node() || has_heartbeat(directory_, memory_.nodes().front());
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

/// Returns whether the run was aborted.
bool Watchdog::tick(double seconds) {
  record_.beat();
  if (gives_up_device(seconds)) return true;
  const int64_t moves = moves_of(memory_);
  const bool moved = moves != moves_, was_still = stands_still();
  moves_ = moves;
  still_ = moved ? 0 : still_ + seconds;
  since_publish_ += seconds;
  since_look_ += seconds;
  for (auto& [node, heartbeat] : others_) heartbeat.age += seconds;
  if (!reports_for_node()) return false;
  if (has_others()) warn_of_unanswered();
  const bool exchanges = has_others() && uses_directory_;
  // The others have looked for news since half of the deadline.
  if (exchanges) exchange_heartbeats(moved && was_still);
  if (still_ < options_.deadline_seconds) {
    overdue_ = 0;
    has_looked_ = false;
    return false;
  }
  overdue_ += seconds;
  if (exchanges && !has_looked_ && overdue_ < kLookSeconds) return false;
  abort_job();
  return true;
}

/// A device does not tell a host that waits for it that a communication failed. A host that is not
/// in such a wait throws by itself, and has this long to do so.
bool Watchdog::gives_up_device(double seconds) {
  try {
    record_.look_at_device();
    device_failed_ = 0;
  } catch (const CommError& error) {
    device_failed_ += seconds;
    if (device_failed_ < frozen_seconds_) return false;
    options_.abort_job("rank " + std::to_string(memory_.own_rank()) + ": " + error.what());
    return true;
  }
  return false;
}

/// The lowest rank of a node whose threads run reports for it.
bool Watchdog::reports_for_node() const {
  const int64_t now = clock_nanoseconds();
  for (size_t i = 0; memory_.of(i) != memory_.own(); ++i)
    if (1e-9 * static_cast<double>(now - read_heartbeat(memory_.of(i))) < frozen_seconds_)
      return false;
  return true;
}

/// Returns a sentence that names the nodes that do not answer; empty: all answer, or nothing was
/// sent to them.
std::string Watchdog::unanswered() const {
  std::vector<std::string> peers = unanswered_peers();
  for (std::string& peer : peers)
    if (const auto host = options_.host_of_address.find(peer);
        host != options_.host_of_address.end())
      peer = host->second + " (" + peer + ")";
  if (peers.empty()) return "";
  return host_name() + " gets no answer over TCP from " + join(peers) +
         ": look at these nodes and at the network between them";
}

void Watchdog::warn_of_unanswered() {
  if (still_ < kSuspicion * options_.deadline_seconds) has_warned_ = false;
  if (has_warned_ || still_ < kSuspicion * options_.deadline_seconds || !options_.warn) return;
  const std::string found = unanswered();
  if (found.empty()) return;
  has_warned_ = true;
  options_.warn(formatted("nothing began or ended for %.1f s, and ", still_) + found);
}

Heartbeat Watchdog::own_heartbeat() const {
  return {.published = published_,
          .moves = moves_,
          .still = still_,
          .written_at = calendar_seconds(),
          .reports = reports_of(memory_)};
}

/// Writes and reads heartbeats, each where it is time and the last one has come back.
void Watchdog::exchange_heartbeats(bool is_new) {
  const bool publishes = publishing_.valid() && !is_ready(publishing_);
  if (!publishes && (is_new || since_publish_ >= kPublish * options_.deadline_seconds)) {
    since_publish_ = 0;
    ++published_;
    // Failures are ignored: a disk that is full for this is full for checkpoints, which report it.
    publishing_ =
        run_detached([directory = directory_, node = own_node(), heartbeat = own_heartbeat()] {
          write_heartbeat(directory, node, heartbeat);
        });
  }
  if (is_ready(look_)) {
    take_heartbeats(look_.get());
    has_looked_ = looks_overdue_;
  }
  const bool is_overdue = still_ >= options_.deadline_seconds;
  if (look_.valid() || (since_look_ < look_seconds() && (!is_overdue || has_looked_))) return;
  last_span_ = std::exchange(since_look_, 0);
  looks_overdue_ = is_overdue;
  std::vector<int> nodes = memory_.nodes();
  std::erase(nodes, own_node());
  if (!stands_still()) {
    look_ = run_detached([directory = directory_, nodes] { return read_heads(directory, nodes); });
    return;
  }
  std::map<int, int64_t> known;
  for (const auto& [node, heartbeat] : others_) known[node] = heartbeat.reported;
  look_ = run_detached(
      [directory = directory_, nodes, known] { return read_heartbeats(directory, nodes, known); });
}

/// Seldom while the run goes on.
double Watchdog::look_seconds() const {
  const double seldom = kPublish * options_.deadline_seconds;
  if (!stands_still()) return seldom;
  return std::min(seldom, 4 + 0.05 * static_cast<double>(memory_.nodes().size()));
}

/// Another node that went on since the last look makes up for this one standing still.
void Watchdog::take_heartbeats(std::map<int, Heartbeat>&& seen) {
  for (auto& [node, heartbeat] : seen) {
    const auto [last, is_first] = others_.emplace(node, heartbeat);
    Heartbeat& known = last->second;
    if (!is_first && heartbeat.reported < 0) {
      heartbeat.reports = std::move(known.reports);
      heartbeat.reported = known.reported;
    }
    if (!is_first && known.published == heartbeat.published) {
      heartbeat.age = known.age;
      known = std::move(heartbeat);
      continue;
    }
    // The heartbeat came after the look before this one, whatever the calendars say.
    const double age =
        std::clamp(calendar_seconds() - heartbeat.written_at, 0.0, last_span_ + since_look_);
    if (is_first || known.moves != heartbeat.moves)
      still_ = std::min(still_, heartbeat.still + age);
    known = std::move(heartbeat);
  }
}

/// Returns the reports of all ranks that anything is known of.
RankReports Watchdog::all_reports() const {
  RankReports reports = reports_of(memory_);
  for (const auto& [node, heartbeat] : others_)
    for (const auto& [rank, report] : heartbeat.reports) {
      reports[rank] = report;
      reports[rank].is_old = heartbeat.age > kUnheard * options_.deadline_seconds;
    }
  return reports;
}

void Watchdog::abort_job() const {
  const RankReports reports = all_reports();
  const HangVerdict verdict = judge_hang(reports, options_.num_ranks, frozen_seconds_);
  const std::string message = "the run hangs: for " + formatted("%g", options_.deadline_seconds) +
                              " s (run.watchdog_seconds) nothing began or ended on any rank. " +
                              verdict.text + ". " + sentence_of(unanswered());
  std::string all;
  for (const auto& [rank, state] : reports) all += "\n" + describe_report(rank, state);
  std::vector<int> first = verdict.behind;
  first.insert(first.end(), memory_.ranks().begin(), memory_.ranks().end());
  options_.abort_job(report(message, all, describe_some(reports, first, kMostToldBytes)));
}

/// Writes all reports to a file. Returns the message for people, with `some` reports where no file
/// can be written.
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
  std::future<HangReport> writing =
      run_detached([directory = directory_, text = message + "\n" + all] {
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
        return "the run hangs, as another node has reported. " + sentence_of(unanswered()) + what +
               "are in " + path;
      case HangReport::HalfWritten:
        break;
    }
  } catch (const StorageError& error) {
    return follow(error.what());
  }
  return follow("another node began to write " + path + " and did not come to its end");
}

std::jthread limit_start(double seconds,
                         std::function<void(const std::string& message)> abort_job) {
  return std::jthread([seconds, abort_job = std::move(abort_job)](const std::stop_token& over) {
    std::mutex mutex;
    std::condition_variable_any stopping;
    std::unique_lock lock(mutex);
    stopping.wait_for(lock, over, std::chrono::duration<double>(seconds), [] { return false; });
    if (!over.stop_requested())
      abort_job("the run hangs: " + formatted("%g", seconds) +
                " s after it began, not every rank has read the deck and opened the weights or the "
                "checkpoint that it names");
  });
}

}  // namespace zea
