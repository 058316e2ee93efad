// SPDX-License-Identifier: Apache-2.0
// The data sets that a run trains on: one by its path, or several, of which each has a weight.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zea {

struct DataSource {
  std::string path;
  double weight = 1;  ///< samples are drawn from it in proportion

  bool operator==(const DataSource&) const = default;
};

struct DataSources {
  std::vector<DataSource> sets;

  DataSources() = default;
  /// One, or none where `path` is empty.
  DataSources(std::string path) {
    if (!path.empty()) sets.push_back({std::move(path)});
  }
  DataSources(const char* path) : DataSources(std::string(path)) {}

  bool empty() const { return sets.empty(); }
  bool operator==(const DataSources&) const = default;
};

}  // namespace zea
