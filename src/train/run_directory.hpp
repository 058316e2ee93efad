// SPDX-License-Identifier: Apache-2.0
// The directory of a run: deck.used.toml, log.txt, metrics.jsonl, checkpoints/, and LOCK, which
// excludes a second run. The lock is a file of zea's own, since file locks are disabled on many
// clusters. Only the root rank makes a RunDirectory.
#pragma once

#include <string>

namespace zea {

class RunDirectory {
 public:
  /// Makes the directory and takes the lock. Throws StorageError naming host, process and job
  /// of the run that holds it. Takes over a lock (see note()) of a dead process of this
  /// machine, of this machine before it booted again (if it has an id), or of an earlier
  /// start of this same job.
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();  ///< releases the lock
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::string& path() const { return path_; }
  const std::string& note() const {
    return note_;
  }  ///< says which lock was taken over; empty otherwise
  void write_deck(const std::string& toml) const;

 private:
  void take_lock();

  std::string path_;
  std::string note_;
};

}  // namespace zea
