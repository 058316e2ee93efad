// SPDX-License-Identifier: Apache-2.0
// A directory under construction: it has another name until it is complete, so that what is killed
// on the way leaves nothing that looks complete.
#pragma once

#include <string>

namespace zea {

/// `path` without slashes at its end.
std::string without_trailing_slash(std::string path);

/// Whether a target is one: its name ends with '/', or it is there.
bool is_directory_target(const std::string& target);

/// Throws StorageError where `target` is a file and `replaces` is not set (--force).
void check_file_target(const std::string& target, bool replaces);

class StagedDirectory {
 public:
  /// Makes `target`.tmp, anew when a process that was killed left one. Throws StorageError when
  /// `target` is there and not an empty directory (with `replaces`: holds files that
  /// zea-consolidate does not write), or `target`.tmp is somebody else's.
  explicit StagedDirectory(const std::string& target, bool replaces = false);
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  /// Removes it unless it was finished.
  ~StagedDirectory();

  /// Where to write.
  const std::string& path() const { return staging_; }
  /// Syncs the entries and gives it its name.
  void finish();

 private:
  std::string target_, staging_;
  bool finished_ = false;
};

}  // namespace zea
