// SPDX-License-Identifier: Apache-2.0
// A made-up tree of PCI devices like the system's, with one device under a port.
#pragma once

#include <string>

#include "support/files.hpp"

namespace zea::testing {

class MadeUpPci {
 public:
  static constexpr const char* kAddress = "0000:1B:00.0";  ///< the tree has it in lower case

  MadeUpPci() {
    namespace fs = std::filesystem;
    fs::create_directories(folder_ / "pci0000:00/0000:00:01.0/0000:1b:00.0");
    fs::create_directory(devices());
    fs::create_symlink("../pci0000:00/0000:00:01.0/0000:1b:00.0",
                       fs::path(devices()) / "0000:1b:00.0");
    set_port("32.0 GT/s PCIe", 16);
    set_most("32.0 GT/s PCIe", 16);
    set_now("32.0 GT/s PCIe", 16);
  }
  std::string devices() const { return folder_ / "devices"; }

  void write(const std::string& name, const std::string& text) const {
    write_bytes(devices() + "/0000:1b:00.0/" + name, text + "\n");
  }
  void set_now(const std::string& speed, int lanes) const {
    write("current_link_speed", speed);
    write("current_link_width", std::to_string(lanes));
  }
  void set_most(const std::string& speed, int lanes) const {
    write("max_link_speed", speed);
    write("max_link_width", std::to_string(lanes));
  }
  void set_port(const std::string& speed, int lanes) const {
    write("../max_link_speed", speed);
    write("../max_link_width", std::to_string(lanes));
  }

 private:
  TemporaryDirectory folder_;
};

}  // namespace zea::testing
