// SPDX-License-Identifier: Apache-2.0
#include "zea/watch/node_news.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "zea/core/error.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

std::string file_of(const std::string& directory, int node) {
  return directory + "/node-" + std::to_string(node) + ".json";
}

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

}  // namespace

void write_news(const std::string& directory, int node, const NodeNews& news) {
  std::error_code ignored;
  fs::create_directories(directory, ignored);
  const nlohmann::json json{{"published", news.published},
                            {"moves", news.moves},
                            {"still", news.still},
                            {"told_at", news.told_at},
                            {"ranks", reports_to_json(news.reports)}};
  overwrite(file_of(directory, node), json.dump());
}

std::map<int, NodeNews> read_news(const std::string& directory, const std::vector<int>& nodes) {
  std::map<int, NodeNews> all;
  for (int node : nodes) try {
      const nlohmann::json json = nlohmann::json::parse(read_file(file_of(directory, node)));
      all[node] = {json.at("published").get<int64_t>(),
                   json.at("moves").get<int64_t>(),
                   json.at("still").get<double>(),
                   json.at("told_at").get<double>(),
                   reports_from_json(json.at("ranks").get<std::string>()),
                   0};
    } catch (const nlohmann::json::exception&) {
      all.erase(node);
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
