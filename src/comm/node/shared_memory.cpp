// SPDX-License-Identifier: Apache-2.0
#include "comm/node/shared_memory.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>

#include "comm/node/handover.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

/// Open MPI keeps 4 MiB per rank in the same place, and takes pages of it as it goes.
constexpr int64_t kSpareBytes = 16 << 20;
constexpr int64_t kSpareBytesPerRank = 6 << 20;

/// What a rank tells the others, as it travels.
struct Offer {
  SegmentOffer segment;
  char why_not[256] = {};  ///< empty: the rank succeeded
};

void write_text(char* to, size_t room, const std::string& text) {
  std::memset(to, 0, room);
  text.copy(to, room - 1);
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

/// Steps that all ranks take together.
class JointSteps {
 public:
  JointSteps(Collectives& ranks, Offer& own) : ranks_(ranks), own_(own) {}

  /// Why a rank failed in this step, which all have then taken; empty where none did.
  std::string take(const std::function<void()>& attempt) {
    write_text(own_.why_not, sizeof own_.why_not, failure_of(attempt));
    all_ = tell(ranks_, own_);
    return first_failure(all_);
  }
  /// As the last step left them.
  const std::vector<Offer>& offers() const { return all_; }

 private:
  Collectives& ranks_;
  Offer& own_;
  std::vector<Offer> all_;
};

/// Tries one way after another; why none of them is open, or empty.
std::string hand_over(const HandoverRanks& ranks, JointSteps& steps) {
  std::string why_not = "ranks cannot reach each other's shared memory";
  for (int way = 0; way < kNumHandovers; ++way) {
    const std::unique_ptr<Handover> handover = make_handover(way, ranks);
    std::string why;
    for (int step = 0; why.empty() && step < handover->num_steps(); ++step)
      why = steps.take([&] { handover->take_step(step); });
    if (why.empty()) return {};
    why_not += (way == 0 ? ": " : "; ") + why;
  }
  return why_not;
}

}  // namespace

SharedMemory::Result SharedMemory::build(Collectives& ranks, int64_t bytes, int64_t limit) {
  const auto memory = std::make_shared<SharedMemory>();
  memory->segments_.resize(ranks.size());
  const int64_t spare = std::max(kSpareBytes, kSpareBytesPerRank * ranks.size());
  Descriptor file;  // closed when this returns: then all have mapped it, or none will
  Offer own;
  own.segment = make_segment_offer(bytes);
  JointSteps steps(ranks, own);
  std::string why = steps.take([&] {
    check_limit(bytes, limit);
    file = make_segment_file(bytes, spare, own.segment.mark);
    memory->segments_[ranks.rank()] = SharedSegment(file.number(), bytes);
    own.segment.file = file.number();
  });
  if (!why.empty()) return {nullptr, why};
  HandoverRanks parties{ranks.rank(), file.number(), {}, &memory->segments_};
  for (const Offer& offer : steps.offers()) parties.offers.push_back(offer.segment);
  why = hand_over(parties, steps);
  if (!why.empty()) return {nullptr, why};
  memory->id_ = parties.offers[0].mark.random;
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
