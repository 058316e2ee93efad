// SPDX-License-Identifier: Apache-2.0
// A temporary directory that all ranks of a test know.
#pragma once

#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.hpp"
#include "support/files.hpp"

namespace zea::testing {

class SharedDirectory {
 public:
  /// Collective.
  explicit SharedDirectory(const Communicator& ranks) : control_(make_mpi_collectives(ranks)) {
    if (control_->rank() == 0) own_.emplace();
    char path[256] = {};
    if (own_) std::strncpy(path, own_->path().c_str(), sizeof path - 1);
    control_->broadcast(path, sizeof path, DType::UInt8, 0).wait();
    path_ = path;
  }
  ~SharedDirectory() {
    if (std::uncaught_exceptions() == 0) control_->barrier();
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  void barrier() const { control_->barrier(); }

 private:
  std::optional<TemporaryDirectory> own_;
  std::unique_ptr<Collectives> control_;
  std::string path_;
};

}  // namespace zea::testing
