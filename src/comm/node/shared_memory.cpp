// SPDX-License-Identifier: Apache-2.0
#include "comm/node/shared_memory.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "comm/agree.hpp"
#include "comm/node/fd_socket.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

/// Open MPI keeps 4 MiB per rank in the same place, and takes pages of it as it goes.
constexpr int64_t kSpareBytes = 16 << 20;
constexpr int64_t kSpareBytesPerRank = 6 << 20;

/// Runs `attempt` on every rank and returns why it failed on the first rank where it did; empty:
/// on none. Collective.
std::string first_failure(Collectives& ranks, const std::function<void()>& attempt) {
  std::string why;
  try {
    attempt();
  } catch (const std::exception& error) {
    why = *error.what() ? error.what() : "unknown";
  }
  for (std::string& of_rank : all_gather_texts(ranks, why))
    if (!of_rank.empty()) return std::move(of_rank);
  return {};
}

void check_limit(int64_t bytes, int64_t limit) {
  if (bytes > limit)
    throw CommError(std::to_string(bytes) + " bytes of shared memory are more than the " +
                    std::to_string(limit) + " allowed");
}

}  // namespace

SharedMemory::Result SharedMemory::build(Collectives& ranks, int64_t bytes, int64_t limit) {
  struct Offer {
    int64_t bytes;
    FdSocket::Address box;
  };
  const auto memory = std::make_shared<SharedMemory>();
  const int rank = ranks.rank(), size = ranks.size();
  memory->segments_.resize(size);
  Descriptor file;  // closed when this returns: then all have mapped it, or none will
  std::optional<FdSocket> box;
  Offer own{.bytes = bytes, .box = {}};
  std::string why = first_failure(ranks, [&] {
    check_limit(bytes, limit);
    file = make_segment_file(bytes, std::max(kSpareBytes, kSpareBytesPerRank * size));
    memory->segments_[rank] = SharedSegment(file.number(), bytes);
    box.emplace();
    own.box = box->address();
  });
  if (!why.empty()) return {nullptr, why};

  std::vector<Offer> offers(size);
  ranks.all_gather(&own, offers.data(), Counts(size, sizeof(Offer)), DType::UInt8).wait();
  std::vector<FdSocket::Address> boxes;
  for (const Offer& offer : offers) boxes.push_back(offer.box);
  for (int first = 1; first < size && why.empty(); first += FdSocket::kMaxQueued) {
    const int end = std::min(first + FdSocket::kMaxQueued, size);
    why = first_failure(ranks, [&] {
      for (int step = first; step < end; ++step)
        box->send(boxes[(rank + step) % size], rank, file.number());
    });
    if (!why.empty()) break;
    why = first_failure(ranks, [&] {
      for (int step = first; step < end; ++step) {
        const auto [from, received] = box->receive(boxes);
        memory->segments_[from] = SharedSegment(received.number(), offers[from].bytes);
      }
    });
  }
  if (!why.empty()) return {nullptr, "ranks cannot reach each other's shared memory: " + why};
  memory->id_ = boxes[0].key;
  return {memory, {}};
}

std::shared_ptr<void> SharedBuffers::allocate(Collectives& ranks, int64_t bytes) {
  std::erase_if(by_begin_, [](const auto& entry) { return entry.second.expired(); });
  SharedMemory::Result result = SharedMemory::build(ranks, std::max<int64_t>(bytes, 1), limit_);
  if (!result.memory) {
    why_not_ = std::move(result.why_not);
    return nullptr;
  }
  std::byte* data = result.memory->data(rank_);
  by_begin_[data] = result.memory;
  return std::shared_ptr<void>(std::move(result.memory), data);
}

SharedAddress SharedBuffers::find(const void* data, int64_t bytes) const {
  const std::byte* begin = static_cast<const std::byte*>(data);
  auto after = by_begin_.upper_bound(begin);
  if (after == by_begin_.begin()) return {};
  const auto& [start, weak] = *std::prev(after);
  std::shared_ptr<SharedMemory> memory = weak.lock();
  const int64_t offset = begin - start;
  if (!memory || offset + bytes > memory->bytes(rank_)) return {};
  return {std::move(memory), offset};
}

}  // namespace zea
