// SPDX-License-Identifier: Apache-2.0
// Files that survive a crash: written in full, synced, and only then given their name. A reader
// therefore sees either the old file, the new file, or none, never half of one. Every failure is a
// StorageError naming the path, and what to do where a disk, a quota or a limit is used up.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

/// Flushes a file's contents to the disk.
void sync_file(const std::string& path);

/// Flushes a directory's entries to the disk: what makes a creation or a rename in it durable.
void sync_directory(const std::string& path);

/// Renames file or directory `from` to `to` and syncs the parent directory of `to`.
void rename_durably(const std::string& from, const std::string& to);

/// Writes `text` to `path`.tmp, syncs it, renames it to `path`.
void write_text_durably(const std::string& path, const std::string& text);

/// Writes `text` to the end of a file, or in place of what is there, at once and without syncing
/// it. A symbolic link is not followed.
void append_text(const std::string& path, const std::string& text);
void replace_text(const std::string& path, const std::string& text);

/// All of a file. Throws WeightsError when it cannot be read, is no regular file, is a symbolic
/// link, or has more than `max_bytes`.
std::string read_text(const std::string& path, int64_t max_bytes);

/// Removes a file that may not exist.
void remove_file(const std::string& path);

/// Directory part of a path; "." when it has none.
std::string parent_directory(const std::string& path);

/// Bytes that this process may still write on the file system of `path`; -1 when unknown.
int64_t free_bytes(const std::string& path);

/// Throws StorageError when the file system of `path` has less than `needed_bytes` left: to be
/// asked before the first byte is written.
void check_free_bytes(const std::string& path, int64_t needed_bytes);

/// A failure's name and, where a disk, a quota or a limit is used up, which and what to do.
std::string describe_storage_error(int error_number, const std::string& path, int64_t needed_bytes);

/// Throws StorageError for failed call `call` on `path` with the errno `error_number`.
[[noreturn]] void throw_storage_error(const std::string& call, const std::string& path,
                                      int error_number, int64_t needed_bytes = 0);

/// A file under construction, written at any offset, that gets its name only when it is finished.
class DurableFile {
 public:
  /// Creates `path`.tmp, replacing one left by a run that died.
  explicit DurableFile(const std::string& path);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  /// Removes the temporary file when finish() was not reached.
  ~DurableFile();

  const std::string& path() const { return path_; }
  /// Large parts go past the kernel's buffers; several threads may write.
  void write(int64_t offset, const void* data, int64_t bytes);
  void finish();

 private:
  std::string path_, temporary_;
  int descriptor_ = -1, direct_ = -1;
};

}  // namespace zea
