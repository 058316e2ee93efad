// SPDX-License-Identifier: Apache-2.0
#include "data/file_facts.hpp"

#include <algorithm>
#include <fstream>

#include <sys/stat.h>

#include "core/error.hpp"
#include "io/manifest.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kBlock = 4096;
constexpr size_t kShortDigits = 15;

}  // namespace

FileFacts facts_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino, found.st_size,
          int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
}

int64_t short_hash(const std::string& bytes) {
  const std::string digits = hash_bytes(bytes.data(), std::ssize(bytes)).substr(0, kShortDigits);
  return std::max(int64_t{1}, static_cast<int64_t>(std::stoll(digits, nullptr, 16)));
}

int64_t hash_of_file(const std::string& path, int64_t bytes, const HashedPart& part) {
  std::ifstream file(path, std::ios::binary);
  const bool is_whole = bytes <= std::max(part.whole, kBlock * part.blocks);
  const int64_t block = is_whole ? bytes : kBlock, blocks = is_whole ? 1 : part.blocks;
  std::string sample(static_cast<size_t>(block * blocks), '\0');
  for (int64_t b = 0; file && b < blocks; ++b) {
    file.seekg(is_whole ? 0 : (bytes - block) * b / (blocks - 1));
    file.read(sample.data() + b * block, block);
  }
  return file ? short_hash(sample) : 0;
}

bool WatchedFile::has_same_hash(const FileFacts& now) const {
  return now.bytes == opened_.bytes && hash_of_file(path_, now.bytes, part_) == hash_;
}

void WatchedFile::refuse(const FileFacts& now) const {
  throw DataError(path_ + " was changed since the run opened it: it had " +
                  std::to_string(opened_.bytes) + " bytes and has " + std::to_string(now.bytes) +
                  ", with another hash. Samples that are still to be read are no longer those of "
                  "the run; restore the file and resume, or start a new run");
}

std::string WatchedFile::check(bool is_read) const {
  const FileFacts now = facts_of(path_);
  if (now == seen_) return "";
  seen_ = now;
  const std::string begin = path_ + " was ", since = " since the run opened it; the run goes on ";
  const std::string resumed = ", and whoever resumes the run will be told that its data differs";
  if (now == FileFacts()) return begin + "removed" + since + "with the file that it has open";
  if (now.device != opened_.device || now.inode != opened_.inode)
    return begin + "replaced" + since + "with the old file" + resumed;
  if (has_same_hash(now))
    return begin + "written to" + since + "with it, since its size and its hash are the same";
  if (is_read) refuse(now);
  return begin + "changed" + since + "with what it holds in memory" + resumed;
}

void WatchedFile::check_before_opening() const {
  const FileFacts now = facts_of(path_);
  if (now == opened_) return;
  if (now != FileFacts() && !has_same_hash(now)) refuse(now);
  seen_ = opened_ = now;
}

}  // namespace zea::detail
