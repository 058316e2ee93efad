// SPDX-License-Identifier: Apache-2.0
#include "node/shared_memory.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <random>

#include "zea/core/error.hpp"

namespace zea {
namespace {

/// Open MPI keeps 4 MiB per rank in the same place, and takes pages of it as it goes.
constexpr int64_t kSpareBytes = 16 << 20;
constexpr int64_t kSpareBytesPerRank = 6 << 20;

/// What a rank tells the others, as it travels.
struct Offer {
  char name[64] = {};
  char why_not[256] = {};  ///< empty: the rank succeeded
  int64_t bytes = 0;
  uint64_t random = 0;
};

void write_text(char* to, size_t room, const std::string& text) {
  std::memcpy(to, text.data(), std::min(room - 1, text.size()));
}

std::vector<Offer> tell(Collectives& ranks, const Offer& own) {
  std::vector<Offer> all(ranks.size());
  const Counts counts(ranks.size(), sizeof(Offer));
  ranks.all_gather(&own, all.data(), counts, DType::UInt8).wait();
  return all;
}

/// Why `attempt` failed; empty where it did not.
std::string failure_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "unknown";
  }
  return {};
}

std::string first_failure(const std::vector<Offer>& all) {
  for (const Offer& offer : all)
    if (*offer.why_not) return offer.why_not;
  return {};
}

void check_limit(int64_t bytes, int64_t limit) {
  if (bytes > limit)
    throw CommError(std::to_string(bytes) + " bytes of shared memory are more than the " +
                    std::to_string(limit) + " allowed");
}

}  // namespace

SharedMemory::Result SharedMemory::build(Collectives& ranks, int64_t bytes, int64_t limit) {
  const auto memory = std::make_shared<SharedMemory>();
  memory->segments_.resize(ranks.size());
  SegmentName name;  // gone when this returns: then all have mapped it, or none will
  Offer own;
  write_text(own.name, sizeof own.name, name.text());
  own.bytes = bytes;
  own.random = (uint64_t{std::random_device{}()} << 32) | std::random_device{}() | 1;
  std::vector<Offer> all;
  /// Why a rank failed in this step, which all have then taken; empty where none did.
  const auto step = [&](const std::function<void()>& attempt) {
    write_text(own.why_not, sizeof own.why_not, failure_of(attempt));
    all = tell(ranks, own);
    return first_failure(all);
  };
  const int64_t spare = std::max(kSpareBytes, kSpareBytesPerRank * ranks.size());
  std::string why = step([&] {
    check_limit(bytes, limit);
    memory->segments_[ranks.rank()] = name.create(bytes, spare);
  });
  if (why.empty()) why = step([&] { name.publish(); });
  if (why.empty())
    why = step([&] {
      for (int r = 0; r < ranks.size(); ++r)
        if (r != ranks.rank()) memory->segments_[r] = open_segment(all[r].name, all[r].bytes);
    });
  if (!why.empty()) return {nullptr, why};
  memory->id_ = all[0].random;
  return {memory, {}};
}

}  // namespace zea
