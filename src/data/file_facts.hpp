// SPDX-License-Identifier: Apache-2.0
// By what a data set's file is known again without reading all of it: at the next start, by a
// resumed run, and by the run that has it open.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace zea::detail {

/// Zeros where the file cannot be looked at.
struct FileFacts {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0, written_at = 0;  ///< nanoseconds since 1970

  bool operator==(const FileFacts&) const = default;
};

FileFacts facts_of(const std::string& path);

/// How much of a file is hashed: all of one of at most `whole` bytes, of a larger one so many
/// blocks at equal distances, the first and the last included.
struct HashedPart {
  int64_t whole = int64_t{16} << 20;
  int64_t blocks = 1024;
};

/// Above 0; 0 where the file cannot be read.
int64_t hash_of_file(const std::string& path, int64_t bytes, const HashedPart& part = {});

/// 60 bits of hash_bytes().
int64_t short_hash(const std::string& bytes);

/// A file while a run reads it.
class WatchedFile {
 public:
  WatchedFile(std::string path, const FileFacts& facts, int64_t hash, const HashedPart& part = {})
      : path_(std::move(path)), opened_(facts), seen_(facts), hash_(hash), part_(part) {}

  int64_t hash() const { return hash_; }
  /// As Dataset::check_files(). `is_read`: parts of it are still read from the disk. Not for
  /// several threads at once.
  std::string check(bool is_read) const;
  /// For one that was closed and is opened again: throws DataError unless it is the same.
  void check_before_opening() const;

 private:
  bool has_same_hash(const FileFacts& now) const;
  [[noreturn]] void refuse(const FileFacts& now) const;

  std::string path_;
  mutable FileFacts opened_;
  mutable FileFacts seen_;  ///< by the last check
  int64_t hash_;
  HashedPart part_;
};

}  // namespace zea::detail
