// SPDX-License-Identifier: Apache-2.0
#include "zea/train/run_directory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "zea/core/error.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// Who holds a lock: one line each of host, process, job.
struct Holder {
  std::string host, process, job;

  std::string describe() const {
    return "host " + host + ", process " + process + (job.empty() ? "" : ", job " + job);
  }
};

Holder own_holder() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const char* job = std::getenv("SLURM_JOB_ID");
  return {host, std::to_string(getpid()), job ? job : ""};
}

Holder read_holder(const fs::path& lock) {
  std::ifstream file(lock);
  Holder holder;
  std::getline(file, holder.host);
  std::getline(file, holder.process);
  std::getline(file, holder.job);
  return holder;
}

bool is_stale(const Holder& holder, const Holder& own) {
  if (!own.job.empty() && holder.job == own.job) return true;  // requeued: the earlier start has ended
  if (holder.host != own.host) return false;                   // cannot be known from here
  const pid_t process = static_cast<pid_t>(std::strtol(holder.process.c_str(), nullptr, 10));
  return process <= 0 || (kill(process, 0) != 0 && errno == ESRCH);
}

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw StorageError("cannot " + what + " " + path.string() + ": " + std::strerror(errno));
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  std::error_code code;
  fs::create_directories(fs::path(path) / "checkpoints", code);
  if (code)
    throw StorageError("cannot make the run directory " + path + ": " + code.message() +
                       "; choose another with -d");
  take_lock();
}

void RunDirectory::take_lock() {
  const fs::path lock = fs::path(path_) / "LOCK";
  const Holder own = own_holder();
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int file = open(lock.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (file >= 0) {
      const std::string text = own.host + "\n" + own.process + "\n" + own.job + "\n";
      const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
      close(file);
      if (!written) fail("write", lock);
      return;
    }
    if (errno != EEXIST) fail("make", lock);
    const Holder holder = read_holder(lock);
    if (!is_stale(holder, own))
      throw StorageError("the run directory " + path_ + " is in use by " + holder.describe() +
                         "; choose another with -d, or remove " + lock.string() + " if that run is dead");
    note_ = "took over the lock that " + holder.describe() + " left in " + path_;
    unlink(lock.c_str());
  }
  throw StorageError("the run directory " + path_ + " is being locked by another run; choose another with -d");
}

RunDirectory::~RunDirectory() { unlink((fs::path(path_) / "LOCK").c_str()); }

void RunDirectory::write_deck(const std::string& toml) const {
  const fs::path file = fs::path(path_) / "deck.used.toml";
  std::ofstream out(file);
  out << toml;
  out.close();
  if (!out) fail("write", file);
}

}  // namespace zea
