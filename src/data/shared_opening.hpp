// SPDX-License-Identifier: Apache-2.0
// How ranks open a data set together: each looks through its part of the contents, and all of them
// find what one rank finds. One rank by default.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace zea {

struct SharedOpening {
  int rank = 0;
  int ranks = 1;
  /// Runs a part that may fail, and communicates nothing: returns on all ranks or throws on all.
  std::function<void(const std::function<void()>&)> agree = [](const auto& part) { part(); };
  /// Gives all ranks the largest of each value.
  std::function<void(std::vector<int64_t>&)> max = [](std::vector<int64_t>&) {};
  /// Is called now and then while a part takes long: slow is not hung.
  std::function<void()> moved = [] {};
  /// What was found in so many tokens is kept beside the data set; fewer take no time.
  int64_t kept_from_tokens = int64_t{4} << 20;
};

}  // namespace zea
