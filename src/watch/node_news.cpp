// SPDX-License-Identifier: Apache-2.0
#include "watch/node_news.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 16;
constexpr size_t kWhole = std::numeric_limits<size_t>::max();

std::string file_of(const std::string& directory, int node) {
  return directory + "/node-" + std::to_string(node) + ".json";
}

/// From the file's beginning, `most` bytes at most. Of a head nothing behind it is fetched.
std::string read_file(const std::string& path, size_t most) {
  std::string text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  if (most == kNewsHeadBytes) posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
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

/// Numbers of a fixed place; the first of them comes again as the last: a head that is half written
/// is none.
std::string head_of(const NodeNews& news) {
  const nlohmann::ordered_json numbers{{"published", news.published},
                                       {"moves", news.moves},
                                       {"still", news.still},
                                       {"told_at", news.told_at},
                                       {"again", news.published}};
  std::string head = numbers.dump();
  ZEA_ASSERT(head.size() < kNewsHeadBytes);
  head.resize(kNewsHeadBytes - 1, ' ');
  return head + "\n";
}

/// Throws where it is not whole.
NodeNews read_head(const std::string& text) {
  const nlohmann::json head = nlohmann::json::parse(text.substr(0, kNewsHeadBytes));
  NodeNews news{.published = head.at("published").get<int64_t>(),
                .moves = head.at("moves").get<int64_t>(),
                .still = head.at("still").get<double>(),
                .told_at = head.at("told_at").get<double>()};
  if (text.size() < kNewsHeadBytes || head.at("again").get<int64_t>() != news.published)
    throw StorageError("the head of a node's news is half written");
  return news;
}

/// Nothing of a node whose file is not whole.
std::optional<NodeNews> read_node(const std::string& path, size_t most) {
  try {
    const std::string text = read_file(path, most);
    NodeNews news = read_head(text);
    if (most == kNewsHeadBytes) return news;
    news.reports = reports_from_json(text.substr(std::min<size_t>(text.size(), kNewsHeadBytes)));
    if (news.reports.empty()) return std::nullopt;
    news.reported = news.published;
    return news;
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
                       "; nodes tell each other there that they go on; run.watchdog_seconds = 0 "
                       "does without");
}

}  // namespace

void write_news(const std::string& directory, int node, const NodeNews& news) {
  std::error_code ignored;
  fs::create_directories(directory, ignored);
  overwrite(file_of(directory, node), head_of(news) + reports_to_json(news.reports));
}

std::map<int, NodeNews> read_heads(const std::string& directory, const std::vector<int>& nodes) {
  std::map<int, NodeNews> all;
  for (int node : nodes)
    if (auto news = read_node(file_of(directory, node), kNewsHeadBytes)) all[node] = *news;
  return all;
}

std::map<int, NodeNews> read_news(const std::string& directory, const std::vector<int>& nodes,
                                  const std::map<int, int64_t>& known) {
  std::map<int, NodeNews> all = read_heads(directory, nodes);
  for (auto& [node, news] : all) {
    const auto last = known.find(node);
    if (last != known.end() && last->second == news.published) continue;
    // Where it is being written only the head is known.
    if (auto whole = read_node(file_of(directory, node), kWhole)) news = std::move(*whole);
  }
  return all;
}

bool has_news(const std::string& directory, int node) {
  return std::ifstream(file_of(directory, node)).is_open();
}

void remove_news(const std::string& directory) {
  std::error_code ignored;  // what cannot be removed cannot be written either
  fs::remove(directory + "/told", ignored);
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (entry.path().filename().string().starts_with("node-")) fs::remove(entry.path(), ignored);
}

}  // namespace zea
