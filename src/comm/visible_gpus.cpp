// SPDX-License-Identifier: Apache-2.0
#include "comm/visible_gpus.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "comm/agree.hpp"
#include "comm/node_cores.hpp"
#include "comm/world.hpp"
#include "core/system.hpp"

namespace zea {
namespace {

std::string text_of(const std::vector<VisibleGpu>& gpus) {
  std::string text;
  for (const VisibleGpu& gpu : gpus)
    text += gpu.id + "\t" + gpu.name + "\t" + (gpu.is_near ? "near" : "far") + "\n";
  return text;
}

std::vector<VisibleGpu> gpus_of_text(const std::string& text) {
  std::vector<VisibleGpu> gpus;
  std::istringstream lines(text);
  for (std::string id, name, distance; std::getline(lines, id, '\t') &&
                                       std::getline(lines, name, '\t') &&
                                       std::getline(lines, distance);)
    gpus.push_back({id, name, distance == "near"});
  return gpus;
}

/// Finds every rank a GPU by moving others to another one of theirs where that makes room.
class Dealer {
 public:
  /// Repeats the list of each rank `shares` times, one time after the other.
  Dealer(const std::vector<std::vector<VisibleGpu>>& seen, int64_t shares)
      : shares_(shares), seen_(seen.size()), taken_(seen.size(), -1) {
    for (size_t rank = 0; rank < seen.size(); ++rank)
      for (int64_t share = 0; share < shares; ++share)
        for (VisibleGpu gpu : seen[rank]) {
          gpu.id += " " + std::to_string(share);
          seen_[rank].push_back(gpu);
        }
  }

  /// Who has a GPU keeps one of the first `shares`.
  void deal(int64_t shares, bool only_near) {
    dealt_shares_ = shares;
    only_near_ = only_near;
    for (size_t rank = 0; rank < seen_.size(); ++rank) {
      visited_.clear();
      if (taken_[rank] < 0) find(static_cast<int>(rank));
    }
  }
  const std::vector<int>& taken() const { return taken_; }

 private:
  bool suits(const VisibleGpu& gpu) const { return gpu.is_near || !only_near_; }

  bool find(int rank) {
    const std::vector<VisibleGpu>& gpus = seen_[rank];
    const size_t dealt = gpus.size() / shares_ * dealt_shares_;
    for (size_t index = 0; index < dealt; ++index)
      if (suits(gpus[index]) && !owner_.contains(gpus[index].id)) return take(rank, index);
    for (size_t index = 0; index < dealt; ++index)
      if (suits(gpus[index]) && visited_.insert(gpus[index].id).second &&
          find(owner_.at(gpus[index].id)))
        return take(rank, index);
    return false;
  }

  bool take(int rank, size_t index) {
    owner_[seen_[rank][index].id] = rank;
    taken_[rank] = static_cast<int>(index);
    return true;
  }

  int64_t shares_, dealt_shares_ = 0;
  std::vector<std::vector<VisibleGpu>> seen_;
  std::vector<int> taken_;
  std::map<std::string, int> owner_;
  std::set<std::string> visited_;
  bool only_near_ = false;
};

}  // namespace

std::vector<std::vector<VisibleGpu>> gpus_on_node(const World& world,
                                                  const std::vector<VisibleGpu>& own) {
  const std::unique_ptr<Collectives> all = make_mpi_collectives(world.communicator());
  const std::vector<std::string> texts = all_gather_texts(*all, text_of(own));
  const std::vector<int>& nodes = world.node_of_rank();
  std::vector<std::vector<VisibleGpu>> seen;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (nodes[rank] == nodes[world.rank()]) seen.push_back(gpus_of_text(texts[rank]));
  return seen;
}

std::vector<int> deal_gpus(const std::vector<std::vector<VisibleGpu>>& seen_by_rank,
                           int64_t ranks_per_gpu) {
  // Far ones with the first share, too, before any is shared.
  Dealer dealer(seen_by_rank, ranks_per_gpu);
  for (int64_t shares = 1; shares <= ranks_per_gpu; ++shares)
    for (const bool only_near : {true, false}) dealer.deal(shares, only_near);
  std::vector<int> taken = dealer.taken();
  for (size_t rank = 0; rank < taken.size(); ++rank)
    if (taken[rank] >= 0) taken[rank] %= static_cast<int>(seen_by_rank[rank].size());
  return taken;
}

void set_nccl_host_id(int local_rank) {
  setenv("NCCL_HOSTID", (host_name() + "-" + std::to_string(local_rank)).c_str(), 1);
}

namespace {

namespace fs = std::filesystem;

/// Its folder, which need not be there.
fs::path folder_of(const std::string& address, const std::string& devices) {
  std::string name = address;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::error_code unknown;
  const fs::path link = fs::path(devices) / name, folder = fs::canonical(link, unknown);
  return unknown ? link : folder;
}

/// Cores of a list as the system writes them: "0-15,64-79".
std::set<int> cores_of_list(const std::string& list) {
  std::set<int> cores;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream range(part);
    if (!(range >> first)) continue;
    if (!(range >> dash >> last)) last = first;
    for (int core = first; core <= last; ++core) cores.insert(core);
  }
  return cores;
}

/// The number that a file begins with ("16.0 GT/s PCIe", "8"); 0: there is none.
double number_in(const fs::path& file) {
  double number = 0;
  std::ifstream(file) >> number;
  return number;
}

/// Returns the most that both the device and its port support.
double most_of(const fs::path& device, const char* what) {
  const double own = number_in(device / what), of_port = number_in(device.parent_path() / what);
  return of_port > 0 ? std::min(own, of_port) : own;
}

}  // namespace

bool is_near_device(const std::string& address, const std::string& devices) {
  std::ifstream file(folder_of(address, devices) / "local_cpulist");
  std::string list;
  if (!std::getline(file, list)) return true;
  const std::set<int> near = cores_of_list(list);
  const std::vector<int> own = own_cores();
  return near.empty() || own.empty() ||
         std::ranges::any_of(own, [&near](int core) { return near.contains(core); });
}

double PciLink::share() const {
  if (speed <= 0 || most_speed <= 0 || lanes <= 0 || most_lanes <= 0) return 1;
  return std::min(1.0, speed * lanes / (most_speed * most_lanes));
}

PciLink pci_link(const std::string& address, const std::string& devices) {
  const fs::path folder = folder_of(address, devices);
  return {.speed = number_in(folder / "current_link_speed"),
          .most_speed = most_of(folder, "max_link_speed"),
          .lanes = static_cast<int>(number_in(folder / "current_link_width")),
          .most_lanes = static_cast<int>(most_of(folder, "max_link_width"))};
}

}  // namespace zea
