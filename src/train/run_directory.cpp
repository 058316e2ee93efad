// SPDX-License-Identifier: Apache-2.0
#include "zea/train/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "zea/core/descriptor.hpp"
#include "zea/core/error.hpp"
#include "zea/core/host_name.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

/// Who holds a lock: one line each of host, process, when that started, job, the space that numbers
/// its processes, of which containers have one each, how often the job was requeued, and which boot
/// of which machine this is.
struct Holder {
  std::string host, process, started, job, process_space, requeued, boot, machine;

  bool operator==(const Holder&) const = default;
  std::string describe() const {
    return "host " + host + ", process " + process + (job.empty() ? "" : ", job " + job);
  }
};

/// In order.
constexpr std::array kLines = {&Holder::host, &Holder::process,       &Holder::started,
                               &Holder::job,  &Holder::process_space, &Holder::requeued,
                               &Holder::boot, &Holder::machine};

/// When a process started, in clock ticks since boot: tells it from a later one with its number.
/// Empty when it is gone, or has ended and is only waiting to be collected, which some containers
/// never do.
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

/// Of a file; empty where there is none.
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

Holder read_holder(const fs::path& lock) {
  std::ifstream file(lock);
  Holder holder;
  for (const auto line : kLines) std::getline(file, holder.*line);
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
  // Elsewhere only a job that was requeued is known to have ended: it is this one.
  if (!is_here) return !own.job.empty() && holder.job == own.job && holder.requeued != own.requeued;
  const std::string started = start_of_process(holder.process);
  return started.empty() || started != holder.started;
}

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw StorageError("cannot " + what + " " + path.string() + ": " + std::strerror(errno));
}

/// Lets one start at a time look at a directory's lock, so that two of them never take over the
/// same dead one: the second would delete the first one's. Where the file system has no such locks
/// it does without.
class Guard {
 public:
  explicit Guard(const std::string& directory)
      : file_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (file_.is_open() && flock(file_.number(), LOCK_EX) != 0 && errno == EINTR) continue;
  }

 private:
  Descriptor file_;
};

void write_holder(const fs::path& path, const Holder& holder) {
  std::ofstream out(path);
  for (const auto line : kLines) out << holder.*line << '\n';
  out.close();
  if (out) return;
  const int error = errno;
  unlink(path.c_str());  // a lock of nobody
  errno = error;
  fail("write", path);
}

/// For file systems without hard links: the lock is empty for a moment.
bool make_lock_in_place(const fs::path& lock, const Holder& own) {
  const int file = open(lock.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST) return false;
  if (file < 0) fail("make", lock);
  close(file);
  write_holder(lock, own);
  return true;
}

/// Makes the lock, with its text in it from the start; false when there is one.
bool make_lock(const fs::path& lock, const Holder& own) {
  const fs::path draft = lock.string() + "." + own.host + "." + own.process;
  write_holder(draft, own);
  const int error = link(draft.c_str(), lock.c_str()) == 0 ? 0 : errno;
  unlink(draft.c_str());
  if (error == 0 || error == EEXIST) return error == 0;
  return make_lock_in_place(lock, own);
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
  // One that was taken over is another run's.
  if (read_holder(lock) == own_holder()) unlink(lock.c_str());
}

void RunDirectory::write_deck(const std::string& toml) const {
  const fs::path file = fs::path(path_) / "deck.used.toml";
  std::ofstream out(file);
  out << toml;
  out.close();
  if (!out) fail("write", file);
}

}  // namespace zea
