// SPDX-License-Identifier: Apache-2.0
#include "train/gather_text.hpp"

#include <numeric>
#include <sstream>

namespace zea {

std::string gather_text(Collectives& control, const std::string& own) {
  Counts counts(control.size());
  const int64_t bytes = static_cast<int64_t>(own.size());
  control.all_gather(&bytes, counts.data(), Counts(control.size(), 1), DType::Int64).wait();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::string all(control.rank() == 0 ? static_cast<size_t>(total) : 0, '\0');
  control.gather(own.data(), all.data(), counts, DType::UInt8, 0).wait();
  return all;
}

void warn_of_lines(Log& log, const std::string& lines) {
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) log.warn(line);
}

}  // namespace zea
