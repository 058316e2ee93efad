// SPDX-License-Identifier: Apache-2.0
#include "comm/pci_device.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "comm/node_cores.hpp"

namespace zea {
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

/// What both the device and the port that it is in go up to.
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
