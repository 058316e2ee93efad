// SPDX-License-Identifier: Apache-2.0
// Files that survive a crash: written in full, synced, and only then given their name. A reader
// therefore sees either the old file, the new file, or none, never half of one. Every failure is a
// StorageError naming the path, and what to do where a disk, a quota or a limit is used up.
#pragma once

#include <cstdint>
#include <optional>
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
/// Cuts off what follows the last end of a line: half a line, of a program that was killed while it
/// wrote or whose disk was full. A symbolic link is not followed.
void remove_half_line(const std::string& path);
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

// Reading a part of an open file.

/// Reads bytes [offset, offset + bytes), in however many parts the kernel gives them. Returns why
/// it could not, `at_end` where the file ends before them; nullptr when all are there.
const char* read_at(int descriptor, int64_t offset, char* target, int64_t bytes,
                    const char* at_end);

// One file under several names (hard links): the disk has its bytes once, and each name is as good
// as the others, whichever goes away. Only what is never written again may be shared like that.

/// Tells a file from another one in its place, and from itself after somebody wrote to it. The time
/// of its status is left out: it changes with every name that the file gets or loses.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  int64_t bytes = 0, modified_nanoseconds = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// nullopt where no regular file is (a symbolic link is none).
std::optional<FileIdentity> identity_of(const std::string& path);

/// Gives the file at `from`, provided that it is `wanted`, the name `to` as well; syncing the
/// directory is the caller's. Returns 0, or why `to` does not exist now: link()'s errno, or ESTALE
/// when it is another file.
int link_file(const std::string& from, const std::string& to, const FileIdentity& wanted);

}  // namespace zea
