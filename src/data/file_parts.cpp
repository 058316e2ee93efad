// SPDX-License-Identifier: Apache-2.0
#include "data/file_parts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/error.hpp"
#include "data/dataset.hpp"
#include "files/durable_file.hpp"
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

namespace {

constexpr const char* kFormat = "zea.checked 2";
constexpr size_t kHashDigits = 32;

std::string kept_path(const std::string& path) {
  return path + ".checked";
}

}  // namespace

std::string describe_contents(const FileFacts& facts, int64_t hash, size_t samples) {
  if (hash == 0) return "";
  return std::string(kFormat) + ": " + std::to_string(facts.bytes) + " bytes written at " +
         std::to_string(facts.written_at) + ", hash " + std::to_string(hash) + ", " +
         std::to_string(samples) + " samples\n";
}

std::optional<ContentScan> read_kept_scan(const std::string& path, const std::string& contents,
                                          size_t samples) {
  if (contents.empty()) return std::nullopt;
  const size_t bytes = samples * sizeof(int64_t);
  const size_t size = contents.size() + sizeof(ContentScan::Facts) + bytes + kHashDigits;
  std::string kept;
  try {
    kept = read_text(kept_path(path), static_cast<int64_t>(size));
  } catch (const Error&) {
    return std::nullopt;
  }
  if (kept.size() != size || !kept.starts_with(contents) ||
      !kept.ends_with(hash_bytes(kept.data(), static_cast<int64_t>(size - kHashDigits))))
    return std::nullopt;
  ContentScan scan;
  scan.targets.resize(samples);
  std::memcpy(&scan.facts, kept.data() + contents.size(), sizeof scan.facts);
  std::memcpy(scan.targets.data(), kept.data() + contents.size() + sizeof scan.facts, bytes);
  return scan;
}

void keep_scan(const std::string& path, const std::string& contents, const ContentScan& scan) {
  if (contents.empty()) return;
  std::string kept = contents;
  kept.append(reinterpret_cast<const char*>(&scan.facts), sizeof scan.facts);
  kept.append(reinterpret_cast<const char*>(scan.targets.data()),
              scan.targets.size() * sizeof(int64_t));
  kept += hash_bytes(kept.data(), static_cast<int64_t>(kept.size()));
  try {
    write_text_durably(kept_path(path), kept);
  } catch (const StorageError&) {
    // A place where nothing can be written, or another run that writes it at this moment.
  }
}

}  // namespace zea::detail

namespace zea {

void check_offsets(const std::string& where, const std::string& name,
                   const std::vector<int64_t>& offsets, int64_t end) {
  const std::string what = where + ": " + name;
  if (offsets.empty())
    throw DataError(what + " is empty; it must have one entry more than elements");
  if (offsets.front() != 0)
    throw DataError(what + "[0] is " + std::to_string(offsets.front()) + ", must be 0");
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1])
      throw DataError(what + "[" + std::to_string(i) + "] is " + std::to_string(offsets[i]) +
                      ", less than " + std::to_string(offsets[i - 1]) + " before it");
  if (offsets.back() != end)
    throw DataError(what + " ends at " + std::to_string(offsets.back()) +
                    ", but what it points into has " + std::to_string(end) + " elements");
}

std::vector<std::string> ragged_strings(const std::vector<int64_t>& offsets,
                                        const std::vector<uint8_t>& values) {
  std::vector<std::string> strings;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    strings.emplace_back(values.begin() + offsets[i], values.begin() + offsets[i + 1]);
  return strings;
}

namespace {

/// In parentheses; nothing where the line is empty or there is none.
std::string line_of(const std::string& source, size_t number) {
  std::istringstream lines(source);
  std::string line;
  for (size_t i = 0; i <= number; ++i)
    if (!std::getline(lines, line)) return "";
  return line.empty() ? "" : " (" + line + ")";
}

}  // namespace

std::string sample_words(const Sample& sample) {
  return "sample " + std::to_string(sample.id) + line_of(sample.source, 0);
}

std::string item_file(const Sample& sample, size_t number) {
  return line_of(sample.source, 1 + number);
}

namespace detail {
namespace {

constexpr const char* kOffsets = "sample_name_offsets";
constexpr const char* kValues = "sample_name_values";

}  // namespace

SampleNames::SampleNames(const H5File& file, size_t samples, int64_t held_bytes) {
  if (!file.has(kOffsets)) return;
  offsets_.emplace(file, kOffsets, held_bytes);
  values_.emplace(file, kValues, held_bytes);
  if (offsets_->length() != static_cast<int64_t>(samples) + 1)
    throw DataError(file.path() + ": " + kOffsets + " has " + std::to_string(offsets_->length()) +
                    " entries for " + std::to_string(samples) +
                    " samples; it must have one more than there are samples");
}

std::string SampleNames::of(const H5File& file, size_t sample) const {
  if (!offsets_) return "";
  const auto first = static_cast<int64_t>(sample);
  const std::vector<int64_t> bounds = offsets_->read(file, first, first + 2);
  if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > values_->length())
    throw DataError(file.path() + ": " + kOffsets + " of sample " + std::to_string(sample) +
                    " are " + std::to_string(bounds[0]) + " and " + std::to_string(bounds[1]) +
                    "; they must not fall, nor leave the " + std::to_string(values_->length()) +
                    " bytes of " + kValues);
  const std::vector<uint8_t> name = values_->read(file, bounds[0], bounds[1]);
  return {name.begin(), name.end()};
}

}  // namespace detail
}  // namespace zea
