// SPDX-License-Identifier: Apache-2.0
#include <caffe2/core/common.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/node_cores.hpp"
#include "comm/world.hpp"
#include "core/system.hpp"
#include "io/manifest.hpp"
#include "preflight/measure_nodes.hpp"

namespace zea {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PciLink, speed, most_speed, lanes, most_lanes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, node, name, zea, build, libtorch, mpi, kernel,
                                   processor, cores, threads, open_files, locked_bytes,
                                   memory_free_bytes, memory_bytes, shared_bytes, shared_free_bytes,
                                   disk_fault, disk_free_bytes, disk_rate, gpu_fault, gpu_id,
                                   gpu_name, visible_gpus, gpu_free_bytes, gpu_bytes, gpu_link,
                                   nccl, built_nccl, cuda_runtime, built_cuda, cuda_driver)

namespace {

/// Returns Slurm's name of the node; elsewhere the host's name without its domain.
std::string node_name() {
  const char* of_slurm = std::getenv("SLURMD_NODENAME");
  if (of_slurm != nullptr && *of_slurm != 0) return of_slurm;
  const std::string host = host_name();
  return host.substr(0, host.find('.'));
}

/// Returns the text after "key" and a colon in a file of /proc; empty where there is no such line.
std::string value_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

int64_t host_memory(const char* what) {
  const std::string kibibytes = value_in("/proc/meminfo", what);
  return kibibytes.empty() ? -1 : std::strtoll(kibibytes.c_str(), nullptr, 10) * 1024;
}

/// Lowers `bytes` to the number in that file, if it is one.
void lower_to(int64_t& bytes, const std::string& path) {
  std::ifstream file(path);
  int64_t limit = 0;
  if (file >> limit) bytes = bytes < 0 ? limit : std::min(bytes, limit);
}

/// Returns the version of the loaded library, which may differ from that of the build. Does not
/// call at::show_config, which asks for CUDA: a process that asks before libtorch's CUDA part is
/// loaded has none for good.
std::string libtorch_version() {
  const auto& options = caffe2::GetBuildOptions();
  const auto version = options.find("TORCH_VERSION");
  return version == options.end() ? "unknown" : version->second;
}

/// Mapped, not read: the ranks of a node share the pages of the program, which they run.
std::string hash_of_program() {
  const Descriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) return "unknown";
  const auto bytes = static_cast<size_t>(status.st_size);
  void* const program = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (program == MAP_FAILED) return "unknown";
  const std::string hash = hash_bytes(program, status.st_size).substr(0, 8);
  ::munmap(program, bytes);
  return hash;
}

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "unknown";
}

int64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

/// A line of version 2 is "0::/a/b"; that of memory in version 1 is "7:memory:/a/b". Each group is
/// within those above it. In a container, which sees only its own, the path may be the host's.
int64_t memory_limit(int64_t total_bytes, const std::string& groups, const std::string& mount) {
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {
    const size_t kind = line.find(':'), path = line.find(':', kind + 1);
    if (kind == std::string::npos || path == std::string::npos) continue;
    const std::string kinds = "," + line.substr(kind + 1, path - kind - 1) + ",";
    const bool is_new = kinds == ",,";
    if (!is_new && kinds.find(",memory,") == std::string::npos) continue;
    const std::string top = mount + (is_new ? "" : "/memory");
    const std::string name = is_new ? "/memory.max" : "/memory.limit_in_bytes";
    for (std::string group = line.substr(path + 1);; group.resize(group.rfind('/'))) {
      lower_to(total_bytes, top + group + name);
      if (group.find('/') == std::string::npos) break;
    }
  }
  return total_bytes;
}

RankFacts facts_of_host(int threads, const std::string& version) {
  RankFacts facts;
  facts.name = node_name();
  facts.zea = version;
  facts.build = hash_of_program();
  facts.libtorch = libtorch_version();
  facts.mpi = mpi_library();
  facts.kernel = kernel_release();
  facts.processor = value_in("/proc/cpuinfo", "model name");
  facts.cores = own_cores();
  facts.threads = threads;
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.memory_bytes = memory_limit(host_memory("MemTotal"), "/proc/self/cgroup", "/sys/fs/cgroup");
  facts.memory_free_bytes = host_memory("MemAvailable");
  if (facts.memory_bytes >= 0)
    facts.memory_free_bytes = std::min(facts.memory_free_bytes, facts.memory_bytes);
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    facts.shared_bytes = static_cast<int64_t>(shared.f_blocks * shared.f_frsize);
    facts.shared_free_bytes = static_cast<int64_t>(shared.f_bavail * shared.f_frsize);
  }
  return facts;
}

std::string text_of(const RankFacts& facts) {
  // Names in the system need not be UTF-8.
  return nlohmann::json(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFacts facts_of_text(const std::string& text) {
  return nlohmann::json::parse(text).get<RankFacts>();
}

}  // namespace zea
