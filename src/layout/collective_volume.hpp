// SPDX-License-Identifier: Apache-2.0
// The volume that a rank sends in a collective, in elements, by the textbook: the least that ranks
// which each hold their part must send, however an implementation brings it about. Pure arithmetic,
// for the counters of a mesh and for a plan's traffic.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zea {

/// Bytes that a rank sends, by the name of the group of ranks: "llm.tp", "replica".
using Traffic = std::map<std::string, int64_t>;

/// Adds `more` to `sum`.
void add_traffic(Traffic& sum, const Traffic& more);
/// Returns the bytes that were sent between two readings of the same counters.
Traffic traffic_between(const Traffic& before, const Traffic& after);
/// "llm.tp 1.25 MiB, replica 0.01 MiB": each divided by `parts`; "nothing" where that is so.
std::string describe(const Traffic& traffic, int64_t parts = 1);

/// Its part to each of the others.
int64_t sent_by_all_gather(const std::vector<int64_t>& counts, int rank);
/// The parts of all others.
int64_t sent_by_reduce_scatter(const std::vector<int64_t>& counts, int rank);
/// A reduce-scatter and an all-gather of shares that differ by one element at most: over all ranks
/// 2 (n - 1) times the buffer.
int64_t sent_by_all_reduce(int64_t count, int ranks, int rank);
/// The same for `rows` rows of `width` elements, with one all-reduce for each chunk of rows.
int64_t sent_by_all_reduces(int64_t rows, int64_t width, int chunks, int ranks, int rank);
/// Returns the elements that go to others.
int64_t sent_by_all_to_all(const std::vector<int64_t>& send_counts, int rank);
/// The root all of it to each of the others; nobody else anything.
int64_t sent_by_broadcast(int64_t count, int ranks, bool is_root);
/// Everyone but the root its part.
int64_t sent_by_gather(const std::vector<int64_t>& counts, int rank, int root);

}  // namespace zea
