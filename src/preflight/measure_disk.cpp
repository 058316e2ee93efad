// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>
#include <vector>

#include "core/error.hpp"
#include "core/system.hpp"
#include "files/durable_file.hpp"
#include "preflight/measure_nodes.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int kPieces = 16;
constexpr int kDiskRepeats = 3;

/// A file without a name, so that nobody has to remove it.
class NamelessFile {
 public:
  explicit NamelessFile(const std::string& directory) {
    std::string path = directory + "/.zea-check-XXXXXX";
    file_ = Descriptor(::mkstemp(path.data()));
    if (!file_.is_open()) throw_storage_error("mkstemp", path, errno);
    ::unlink(path.c_str());
    path_ = path;
  }

  void write(const std::vector<uint64_t>& piece) const {
    const char* at = reinterpret_cast<const char*>(piece.data());
    const char* const end = at + piece.size() * sizeof(uint64_t);
    while (at < end) {
      const ssize_t written = ::write(file_.number(), at, static_cast<size_t>(end - at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_storage_error("write", path_, errno, kPieceBytes);
      at += written;
    }
  }
  void sync() const {
    if (::fsync(file_.number()) != 0) throw_storage_error("fsync", path_, errno);
  }

 private:
  Descriptor file_;
  std::string path_;
};

/// Writes numbers that no file system can compress.
double write_rate(const std::string& directory, const std::vector<uint64_t>& piece) {
  const NamelessFile file(directory);
  const Stopwatch watch;
  for (int number = 0; number < kPieces; ++number) file.write(piece);
  file.sync();
  return static_cast<double>(kPieces * kPieceBytes) / watch.seconds();
}

std::string existing(const std::string& directory) {
  fs::path path = fs::absolute(directory);
  std::error_code unknown;
  while (!fs::exists(path, unknown) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

}  // namespace

void measure_disk(const std::string& directory, RankFacts& facts) {
  const std::string place = existing(directory);
  facts.disk_free_bytes = free_bytes(place);
  std::mt19937_64 draw(1);
  std::vector<uint64_t> piece(kPieceBytes / sizeof(uint64_t));
  std::ranges::generate(piece, draw);
  try {
    for (int repeat = 0; repeat < kDiskRepeats; ++repeat)
      facts.disk_rate = std::max(facts.disk_rate, write_rate(place, piece));
  } catch (const Error& error) {
    facts.disk_fault = error.what();
  }
}

}  // namespace zea
