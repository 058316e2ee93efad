// SPDX-License-Identifier: Apache-2.0
#include "zea/train/watchdog.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "zea/core/error.hpp"
#include "zea/core/host_name.hpp"
#include "zea/train/hang_verdict.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// A report may take this long; then the job ends without.
constexpr auto kReportTime = std::chrono::seconds(7);

// Of the deadline: how often nodes tell something, and look what the others told; and how long one
// that lives can be silent.
constexpr double kPublish = 0.2;
constexpr double kUnheard = 0.45;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Overwrites in place and closes: a reader on another node that opens the file afterwards sees
/// it, also where file systems keep names and attributes in caches.
void overwrite(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      ftruncate(file, static_cast<off_t>(text.size())) == 0;
  const int why = errno;
  if (file >= 0) close(file);
  if (!written)
    throw StorageError("cannot write " + path + ": " + std::strerror(why) +
                       "; nodes tell each other there that they go on; run.watchdog_seconds = 0 "
                       "does without");
}

double calendar_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Nothing where the node has told nothing, or is telling right now.
bool read_news(const std::string& path, NodeNews& news) {
  try {
    const nlohmann::json json = nlohmann::json::parse(read_file(path));
    news = {json.at("published").get<int64_t>(),
            json.at("moves").get<int64_t>(),
            json.at("still").get<double>(),
            json.at("told_at").get<double>(),
            reports_from_json(json.at("ranks").get<std::string>()),
            0};
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace

Watchdog::Watchdog(const NodeMemory& memory, ActionRecord& record, WatchdogOptions options)
    : memory_(memory),
      record_(record),
      options_(std::move(options)),
      directory_(options_.directory + "/watchdog"),
      period_(std::clamp(options_.deadline_seconds / 20, 0.02, 1.0)),
      frozen_seconds_(std::clamp(options_.deadline_seconds / 2, 0.5, 3.0)) {
  std::error_code ignored;  // what cannot be removed cannot be written either
  if (memory_.ranks().front() == 0) fs::remove(directory_ + "/told", ignored);
  if (memory_.nodes().size() > 1 && memory_.own() == memory_.of(0)) publish();
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
  int64_t moves = 0;
  for (size_t i = 0; i < memory_.ranks().size(); ++i) moves += read_moves(memory_.of(i));
  const bool moved = moves != moves_, was_still = still_ >= options_.deadline_seconds / 2;
  moves_ = moves;
  still_ = moved ? 0 : still_ + seconds;
  since_publish_ += seconds;
  since_look_ += seconds;
  for (auto& [node, news] : others_) news.unheard += seconds;
  if (!speaks()) return false;
  if (memory_.nodes().size() > 1) {
    // The others have looked for this since half of the deadline.
    const bool is_news = moved && was_still;
    if (is_news || since_publish_ >= kPublish * options_.deadline_seconds) try {
        publish();
      } catch (const StorageError&) {
        // A disk that is full for this is full for checkpoints: they tell.
      }
    if (still_ >= options_.deadline_seconds || since_look_ >= look_seconds()) look_at_other_nodes();
  }
  if (still_ < options_.deadline_seconds) return false;
  tell();
  return true;
}

/// One rank of a node speaks for it: the lowest whose threads run.
bool Watchdog::speaks() const {
  const int64_t now = clock_nanoseconds();
  for (size_t i = 0; memory_.of(i) != memory_.own(); ++i)
    if (1e-9 * static_cast<double>(now - read_heartbeat(memory_.of(i))) < frozen_seconds_)
      return false;
  return true;
}

RankReports Watchdog::own_reports() const {
  RankReports reports;
  for (size_t i = 0; i < memory_.ranks().size(); ++i) {
    const RankState state = read_rank_state(memory_.of(i));
    reports[memory_.ranks()[i]] = {host_name(), clock_nanoseconds(), state};
  }
  return reports;
}

std::string Watchdog::node_file(int node) const {
  return directory_ + "/node-" + std::to_string(node) + ".json";
}

void Watchdog::publish() {
  since_publish_ = 0;
  std::error_code ignored;
  fs::create_directories(directory_, ignored);
  const nlohmann::json news{{"published", ++published_},
                            {"moves", moves_},
                            {"still", still_},
                            {"told_at", calendar_seconds()},
                            {"ranks", reports_to_json(own_reports())}};
  overwrite(node_file(memory_.ranks().front()), news.dump());
}

/// Seldom while the run goes on.
double Watchdog::look_seconds() const {
  const double seldom = kPublish * options_.deadline_seconds;
  if (still_ < options_.deadline_seconds / 2) return seldom;
  return std::min(seldom, 4 + 0.05 * static_cast<double>(memory_.nodes().size()));
}

/// Another node that went on since the last look makes up for this one standing still.
void Watchdog::look_at_other_nodes() {
  const double since_look = std::exchange(since_look_, 0);
  for (int node : memory_.nodes()) {
    NodeNews news;
    if (node == memory_.ranks().front() || !read_news(node_file(node), news)) continue;
    const auto [last, is_first] = others_.emplace(node, news);
    if (!is_first && last->second.published == news.published) continue;
    // The news came after the last look, whatever the calendars say.
    const double age = std::clamp(calendar_seconds() - news.told_at, 0.0, since_look);
    if (is_first || last->second.moves != news.moves) still_ = std::min(still_, news.still + age);
    last->second = std::move(news);
  }
}

/// Of all ranks that anything is known of.
RankReports Watchdog::all_reports() const {
  RankReports reports = own_reports();
  for (const auto& [node, news] : others_)
    for (const auto& [rank, report] : news.reports) {
      reports[rank] = report;
      reports[rank].is_old = news.unheard > kUnheard * options_.deadline_seconds;
    }
  return reports;
}

void Watchdog::tell() {
  // What follows reads and writes files; a file system may be why the run hangs. And the rank that
  // tells may be stopped by now.
  bool is_told = false;
  std::thread last_resort([&] {
    std::unique_lock lock(mutex_);
    if (stopping_.wait_for(lock, kReportTime, [&] { return is_told || is_stopped_; })) return;
    options_.give_up("the run hangs, and no report came into its directory " + options_.directory +
                     " in time");
  });
  std::error_code ignored;
  fs::create_directories(directory_, ignored);
  const int first = open((directory_ + "/told").c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (first >= 0) close(first);
  if (first >= 0 || errno != EEXIST) {
    const RankReports reports = all_reports();
    const HangVerdict verdict = judge_hang(reports, options_.num_ranks, frozen_seconds_);
    options_.give_up(write_report(reports, verdict.text));
    const std::lock_guard lock(mutex_);
    is_told = true;
  }
  stopping_.notify_all();
  last_resort.join();
}

/// The message for people.
std::string Watchdog::write_report(const RankReports& reports, const std::string& verdict) const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", options_.deadline_seconds);
  const std::string message = std::string("the run hangs: for ") + seconds +
                              " s (run.watchdog_seconds) nothing began or ended on any rank. " +
                              verdict + ". ";
  std::string all;
  for (const auto& [rank, report] : reports) all += "\n" + describe_report(rank, report);
  const std::string path = directory_ + "/report.txt";
  std::ofstream file(path);
  file << message << "\n" << all;
  file.close();
  const std::string what =
      "The last " + std::to_string(kRecordedActions) + " actions and communications of every rank ";
  return file ? message + what + "are in " + path
              : message + what + "follow, since " + path + " cannot be written:\n" + all;
}

}  // namespace zea
