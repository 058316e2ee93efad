// SPDX-License-Identifier: Apache-2.0
#include "layout/collective_volume.hpp"

#include <numeric>

#include "core/text.hpp"
#include "layout/token_layout.hpp"

namespace zea {
namespace {

int64_t others(const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) - counts[rank];
}

}  // namespace

void add_traffic(Traffic& sum, const Traffic& more) {
  for (const auto& [name, bytes] : more) sum[name] += bytes;
}

Traffic traffic_between(const Traffic& before, const Traffic& after) {
  Traffic between;
  for (const auto& [name, bytes] : after) {
    const auto found = before.find(name);
    const int64_t sent = bytes - (found == before.end() ? 0 : found->second);
    if (sent > 0) between[name] = sent;
  }
  return between;
}

std::string describe(const Traffic& traffic, int64_t parts) {
  const std::string text = join(traffic, ", ", [&](const auto& group) {
    const auto& [name, bytes] = group;
    return name + formatted(" %.3f MiB",
                            static_cast<double>(bytes) / static_cast<double>(parts) / (1 << 20));
  });
  return text.empty() ? "nothing" : text;
}

int64_t sent_by_all_gather(const std::vector<int64_t>& counts, int rank) {
  return counts[rank] * (static_cast<int64_t>(counts.size()) - 1);
}

int64_t sent_by_reduce_scatter(const std::vector<int64_t>& counts, int rank) {
  return others(counts, rank);
}

int64_t sent_by_all_reduce(int64_t count, int ranks, int rank) {
  const int64_t share = count * (rank + 1) / ranks - count * rank / ranks;
  return count - share + share * (ranks - 1);
}

int64_t sent_by_all_reduces(int64_t rows, int64_t width, int chunks, int ranks, int rank) {
  int64_t sent = 0;
  for (int chunk = 0; chunk < chunks; ++chunk)
    sent += sent_by_all_reduce(chunk_of_rows(rows, chunk, chunks).length() * width, ranks, rank);
  return sent;
}

int64_t sent_by_all_to_all(const std::vector<int64_t>& send_counts, int rank) {
  return others(send_counts, rank);
}

int64_t sent_by_broadcast(int64_t count, int ranks, bool is_root) {
  return is_root ? count * (ranks - 1) : 0;
}

int64_t sent_by_gather(const std::vector<int64_t>& counts, int rank, int root) {
  return rank == root ? 0 : counts[rank];
}

}  // namespace zea
