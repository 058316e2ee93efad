// SPDX-License-Identifier: Apache-2.0
// One file under several names (hard links): the disk has its bytes once, and each name is as good
// as the others, whichever goes away. Only what is never written again may be shared like that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace zea {

/// What tells a file from another one in its place, and from itself after somebody wrote to it.
/// Not the time of its status: that changes with every name that it gets or loses.
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
