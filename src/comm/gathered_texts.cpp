// SPDX-License-Identifier: Apache-2.0
#include "comm/gathered_texts.hpp"

#include <numeric>

namespace zea {

std::vector<std::string> all_gather_texts(Collectives& host, const std::string& text) {
  const size_t ranks = static_cast<size_t>(host.size());
  const auto own = static_cast<int64_t>(text.size());
  Counts sizes(ranks);
  host.all_gather(&own, sizes.data(), Counts(ranks, 1), DType::Int64).wait();
  std::string all(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})), 0);
  host.all_gather(text.data(), all.data(), sizes, DType::UInt8).wait();
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    texts.push_back(all.substr(begin, static_cast<size_t>(size)));
    begin += static_cast<size_t>(size);
  }
  return texts;
}

}  // namespace zea
