// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/error.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// The holder of a lock: one line each of host, process, its start time, job, the namespace
/// that numbers its processes (each container has its own), how often the job was requeued, and
/// the boot and id of the machine.
struct Holder {
  std::string host, process, started, job, process_space, requeued, boot, machine;

  bool operator==(const Holder&) const = default;
  std::string describe() const {
    if (host.empty()) return "a file that names no run";
    return "host " + host + ", process " + process + (job.empty() ? "" : ", job " + job);
  }
};

/// Their order in the file.
constexpr std::array kLines = {&Holder::host, &Holder::process,       &Holder::started,
                               &Holder::job,  &Holder::process_space, &Holder::requeued,
                               &Holder::boot, &Holder::machine};

/// Returns the start time of a process in clock ticks since boot, which distinguishes it from a
/// later one with its number. Empty if it is gone, or has ended and only waits to be collected,
/// which some containers never do.
std::string start_of_process(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // names may hold anything
  if (name_end == std::string::npos) return "";
  constexpr int kFieldsFromStateToStart = 19;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, started;
  fields >> state;
  for (int i = 0; i < kFieldsFromStateToStart; ++i) fields >> started;
  return state == "Z" || state == "X" ? "" : started;
}

/// Returns the first line of a file; empty where there is none.
std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

Holder own_holder() {
  const char* job = std::getenv("SLURM_JOB_ID");
  const std::string process = std::to_string(getpid());
  std::error_code no_link;  // no /proc: nothing is known of any process
  const fs::path space = fs::read_symlink("/proc/self/ns/pid", no_link);
  const char* requeued = std::getenv("SLURM_RESTART_COUNT");
  return {.host = host_name(),
          .process = process,
          .started = start_of_process(process),
          .job = job ? job : "",
          .process_space = space.string(),
          .requeued = requeued ? requeued : "0",
          .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .machine = first_line("/etc/machine-id")};
}

/// Returns an empty holder where the file is a link, or not a lock.
Holder read_holder(const fs::path& lock) {
  constexpr int64_t kMaxBytes = 4096;
  Holder holder;
  try {
    std::istringstream file(read_text(lock.string(), kMaxBytes));
    for (const auto line : kLines) std::getline(file, holder.*line);
  } catch (const WeightsError&) {
    return {};
  }
  return holder;
}

bool is_stale(const Holder& holder, const Holder& own) {
  // Names of hosts, numbers of spaces and, in copies of an image, ids of machines come again
  // elsewhere: a machine is known by its name and id together.
  const bool is_own_host = holder.host == own.host && !own.boot.empty() && !holder.boot.empty();
  const bool is_own_machine = is_own_host && !own.machine.empty() && holder.machine == own.machine;
  if (is_own_machine && holder.boot != own.boot) return true;  // which started again since
  const bool is_here = is_own_host && holder.boot == own.boot && !own.process_space.empty() &&
                       holder.process_space == own.process_space;
  // A job elsewhere is known to have ended only if it was requeued: it is this one.
  if (!is_here) return !own.job.empty() && holder.job == own.job && holder.requeued != own.requeued;
  const std::string started = start_of_process(holder.process);
  return started.empty() || started != holder.started;
}

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw_storage_error(what, path.string(), errno);
}

std::string user_name(uid_t user) {
  const passwd* entry = getpwuid(user);
  return entry ? entry->pw_name : std::to_string(user);
}

/// Describes the process of this machine that holds a file's lock, from /proc/locks.
std::string lock_holder(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0) return "a process";
  const std::string inode = formatted(" %02x:%02x:%lu ", major(status.st_dev), minor(status.st_dev),
                                      static_cast<unsigned long>(status.st_ino));
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, process;
    fields >> number >> kind >> mode >> access >> process;
    if (kind != "FLOCK" || line.find(inode) == std::string::npos) continue;
    struct stat of_process {};
    if (stat(("/proc/" + process).c_str(), &of_process) != 0) break;
    return "process " + process + " (" + first_line(("/proc/" + process + "/comm").c_str()) +
           ") of user " + user_name(of_process.st_uid);
  }
  return "a process of another machine or container";
}

/// Allows one start at a time to look at a directory's lock, so that two of them never take
/// over the same dead one: the second would delete the first one's. Does without where the file
/// system has no such locks. Whoever may read the directory can hold it, but no start waits for
/// ever.
class Guard {
 public:
  explicit Guard(const std::string& directory)
      : file_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr double kMostSeconds = 5;
    const Stopwatch clock;
    while (file_.is_open() && flock(file_.number(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EINTR && errno != EWOULDBLOCK) return;
      if (clock.seconds() > kMostSeconds)
        throw StorageError("the run directory " + directory + " is locked (flock) by " +
                           lock_holder(file_.number()) +
                           ", which no start of zea does for so long; end that process, keep "
                           "others from reading the directory (chmod go-rx), or choose another "
                           "with -d");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  Descriptor file_;
};

/// Returns false where there is a file, or a link, of that name.
bool write_holder(const fs::path& path, const Holder& holder) {
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const Descriptor file(open(path.c_str(), kNew, 0644));
  if (!file.is_open() && errno == EEXIST) return false;
  if (!file.is_open()) fail("create", path);
  std::string text;
  for (const auto line : kLines) text += holder.*line + '\n';
  const ssize_t written = write(file.number(), text.data(), text.size());
  if (written == std::ssize(text)) return true;
  if (written >= 0) errno = ENOSPC;  // no room for the rest
  const int error = errno;
  unlink(path.c_str());  // it names no holder
  errno = error;
  fail("write", path);
}

/// Makes the lock with its text in it; returns false when there is one. Where the file system
/// has no hard links the lock is empty for a moment.
bool make_lock(const fs::path& lock, const Holder& own) {
  const fs::path draft = lock.string() + "." + own.host + "." + own.process;
  unlink(draft.c_str());  // of a dead process with this number, or not ours
  if (!write_holder(draft, own)) fail("create", draft);
  const int error = link(draft.c_str(), lock.c_str()) == 0 ? 0 : errno;
  unlink(draft.c_str());
  if (error == 0 || error == EEXIST) return error == 0;
  return write_holder(lock, own);
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
  const Guard guard(path_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (make_lock(lock, own)) return;
    const Holder holder = read_holder(lock);
    if (!is_stale(holder, own))
      throw StorageError("the run directory " + path_ + " is in use by " + holder.describe() +
                         "; choose another with -d, or remove " + lock.string() +
                         " if that run is dead");
    note_ = "took over the lock that " + holder.describe() + " left in " + path_;
    unlink(lock.c_str());
  }
  throw StorageError("the run directory " + path_ +
                     " is being locked by another run; choose another with -d");
}

RunDirectory::~RunDirectory() {
  const fs::path lock = fs::path(path_) / "LOCK";
  // A lock that was taken over belongs to another run.
  if (read_holder(lock) == own_holder()) unlink(lock.c_str());
}

void RunDirectory::write_deck(const std::string& toml) const {
  replace_text(path_ + "/deck.used.toml", toml);
}

}  // namespace zea
