// SPDX-License-Identifier: Apache-2.0
#include "watch/heartbeat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "core/system.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 16;
constexpr size_t kWhole = std::numeric_limits<size_t>::max();

std::string file_of(const std::string& directory, int node) {
  return directory + "/node-" + std::to_string(node) + ".json";
}

/// Reads at most `most` bytes from the file's beginning; for a head, the system prefetches nothing.
std::string read_file(const std::string& path, size_t most) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  if (most == kHeartbeatHeadBytes) posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
  ssize_t got = 1;
  while (got > 0 && text.size() < most) {
    const size_t had = text.size(), wanted = std::min(most - had, kReadBytes);
    text.resize(had + wanted);
    got = read(file, text.data() + had, wanted);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  close(file);
  return text;
}

/// Returns a head of fixed length. Its first number comes again as the last, so that a half written
/// head is recognized.
std::string head_of(const Heartbeat& heartbeat) {
  const nlohmann::ordered_json numbers{{"published", heartbeat.published},
                                       {"moves", heartbeat.moves},
                                       {"still", heartbeat.still},
                                       {"written_at", heartbeat.written_at},
                                       {"again", heartbeat.published}};
  std::string head = numbers.dump();
  ZEA_ASSERT(head.size() < kHeartbeatHeadBytes);
  head.resize(kHeartbeatHeadBytes - 1, ' ');
  return head + "\n";
}

/// Throws where the head is not whole.
Heartbeat read_head(const std::string& text) {
  const nlohmann::json head = nlohmann::json::parse(text.substr(0, kHeartbeatHeadBytes));
  Heartbeat heartbeat{.published = head.at("published").get<int64_t>(),
                      .moves = head.at("moves").get<int64_t>(),
                      .still = head.at("still").get<double>(),
                      .written_at = head.at("written_at").get<double>()};
  if (text.size() < kHeartbeatHeadBytes || head.at("again").get<int64_t>() != heartbeat.published)
    throw StorageError("the head of a heartbeat is half written");
  return heartbeat;
}

/// Returns nothing where the file is not whole.
std::optional<Heartbeat> read_node(const std::string& path, size_t most) {
  try {
    const std::string text = read_file(path, most);
    Heartbeat heartbeat = read_head(text);
    if (most == kHeartbeatHeadBytes) return heartbeat;
    heartbeat.reports =
        reports_from_json(text.substr(std::min<size_t>(text.size(), kHeartbeatHeadBytes)));
    if (heartbeat.reports.empty()) return std::nullopt;
    heartbeat.reported = heartbeat.published;
    return heartbeat;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// Overwrites in place and closes: a reader on another node that opens the file afterwards sees
/// it, also where file systems keep names and attributes in caches.
void overwrite(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  const bool written =
      file >= 0 && pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      ftruncate(file, static_cast<off_t>(text.size())) == 0;
  const int why = errno;
  if (file >= 0) close(file);
  if (!written)
    throw StorageError("cannot write " + path + ": " + std::strerror(why) +
                       "; nodes write there that they go on; run.watchdog_seconds = 0 "
                       "does without");
}

/// Returns whether this node is the first to make the mark, or nobody can.
bool claim(const std::string& mark) {
  const int file = open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
  return file >= 0 || errno != EEXIST;
}

bool is_written_within(const std::string& mark, double seconds) {
  const Stopwatch clock;
  while (clock.seconds() < seconds) {
    char byte;
    if (std::ifstream file(mark); file.get(byte)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

}  // namespace

void write_heartbeat(const std::string& directory, int node, const Heartbeat& heartbeat) {
  std::error_code ignored;
  fs::create_directories(directory, ignored);
  overwrite(file_of(directory, node), head_of(heartbeat) + reports_to_json(heartbeat.reports));
}

std::map<int, Heartbeat> read_heads(const std::string& directory, const std::vector<int>& nodes) {
  std::map<int, Heartbeat> all;
  for (int node : nodes)
    if (auto heartbeat = read_node(file_of(directory, node), kHeartbeatHeadBytes))
      all[node] = *heartbeat;
  return all;
}

std::map<int, Heartbeat> read_heartbeats(const std::string& directory,
                                         const std::vector<int>& nodes,
                                         const std::map<int, int64_t>& known) {
  std::map<int, Heartbeat> all = read_heads(directory, nodes);
  for (auto& [node, heartbeat] : all) {
    const auto last = known.find(node);
    if (last != known.end() && last->second == heartbeat.published) continue;
    // While it is being written only the head is known.
    if (auto whole = read_node(file_of(directory, node), kWhole)) heartbeat = std::move(*whole);
  }
  return all;
}

bool has_heartbeat(const std::string& directory, int node) {
  return std::ifstream(file_of(directory, node)).is_open();
}

void remove_heartbeats(const std::string& directory) {
  std::error_code ignored;  // what cannot be removed cannot be written either
  fs::remove(directory + "/told", ignored);
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (entry.path().filename().string().starts_with("node-")) fs::remove(entry.path(), ignored);
}

std::string hang_report_path(const std::string& directory) {
  return directory + "/report.txt";
}

HangReport write_hang_report(const std::string& directory, const std::string& text,
                             double seconds) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  // Empty until the report is written.
  const std::string mark = directory + "/told";
  if (!claim(mark))
    return is_written_within(mark, seconds) ? HangReport::ByAnother : HangReport::HalfWritten;
  replace_text(hang_report_path(directory), text);
  replace_text(mark, "written\n");
  return HangReport::Written;
}

}  // namespace zea
