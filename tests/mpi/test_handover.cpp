// SPDX-License-Identifier: Apache-2.0
// Every way in which ranks of a node come by each other's memory, each on its own: where the first
// is open, which is nearly everywhere, the others are not tried.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/node/handover.hpp"
#include "core/error.hpp"
#include "mpi/shared_collectives.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_handover {
namespace {

constexpr int64_t kBytes = 10000;

class HandoverTest : public ::testing::Test {
 protected:
  HandoverTest() {
    own_ = make_segment_offer(kBytes + communicator_.rank());
    file_ = make_segment_file(own_.bytes, 0, own_.mark);
    own_.file = file_.number();
    tell();
  }

  /// Every rank's offer to all.
  void tell() {
    ranks_.rank = communicator_.rank();
    ranks_.file = file_.number();
    ranks_.offers.resize(communicator_.size());
    ranks_.segments = &segments_;
    segments_.resize(communicator_.size());
    const Counts counts(communicator_.size(), sizeof(SegmentOffer));
    mpi_->all_gather(&own_, ranks_.offers.data(), counts, DType::UInt8).wait();
  }

  /// How many steps this rank took until one failed; all ranks wait for each other after each.
  int take_steps(Handover& handover) {
    int good = 0;
    for (int step = 0; step < handover.num_steps(); ++step) {
      good += good == step && has_taken(handover, step);
      mpi_->barrier();
    }
    return good;
  }

  static bool has_taken(Handover& handover, int step) {
    try {
      handover.take_step(step);
    } catch (const CommError&) {
      return false;
    }
    return true;
  }

  bool has_name() const { return std::filesystem::exists(std::string("/dev/shm/") + own_.name); }

  Communicator communicator_ = testing::world().communicator();
  std::unique_ptr<Collectives> mpi_ = make_mpi_collectives(communicator_);
  SegmentOffer own_;
  Descriptor file_;
  HandoverRanks ranks_;
  std::vector<SharedSegment> segments_;
};

class EveryHandoverTest : public HandoverTest, public ::testing::WithParamInterface<int> {};

/// Where /proc shows no other process's files (hidepid, user namespaces) that way is closed.
bool may_look_into(const HandoverRanks& ranks) {
  return std::all_of(ranks.offers.begin(), ranks.offers.end(), [](const SegmentOffer& offer) {
    const std::string files = "/proc/" + std::to_string(offer.process) + "/fd/";
    return access((files + std::to_string(offer.file)).c_str(), R_OK) == 0;
  });
}

TEST_P(EveryHandoverTest, GivesTheMemoryOfEveryPeer) {
  int is_open = GetParam() != 1 || may_look_into(ranks_);
  mpi_->all_reduce(&is_open, 1, DType::Int32, ReduceOp::Min).wait();
  if (!is_open) GTEST_SKIP() << "ranks may not look into each other's processes here";
  const SharedSegment own(file_.number(), own_.bytes);
  std::memset(own.data(), 1 + ranks_.rank, own_.bytes);
  {
    const auto handover = make_handover(GetParam(), ranks_);
    ASSERT_EQ(take_steps(*handover), handover->num_steps());
  }

  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank) continue;
    ASSERT_EQ(segments_[r].bytes(), kBytes + r);
    for (int64_t i : {int64_t{0}, kBytes + r - 1})
      EXPECT_EQ(segments_[r].data()[i], std::byte(1 + r)) << r << " " << i;
  }
  EXPECT_FALSE(has_name());
}

TEST_P(EveryHandoverTest, RefusesOtherMemoryOfThatSize) {
  if (ranks_.rank == 0) own_.mark.random ^= 2;
  tell();

  const auto handover = make_handover(GetParam(), ranks_);
  const int good = take_steps(*handover);

  if (ranks_.rank != 0) {
    EXPECT_LT(good, handover->num_steps());
  }
}

TEST_P(EveryHandoverTest, FailsWhereAPeerIsNotFound) {
  if (ranks_.rank != 0) {
    std::strcpy(ranks_.offers[0].name, "zea-nobody");
    ranks_.offers[0].process = 0;
  }

  const auto handover = make_handover(GetParam(), ranks_);
  const int good = take_steps(*handover);

  if (ranks_.rank != 0) {
    EXPECT_LT(good, handover->num_steps());
  }
}

/// As any process may: a message for whoever has that name, of the size of a true one.
bool write_as_stranger(const char* name) {
  const Descriptor stranger(socket(AF_UNIX, SOCK_DGRAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path + 1, name);
  const char junk[16] = {};
  const size_t bytes = offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name);
  return sendto(stranger.number(), junk, sizeof junk, 0, reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(bytes)) == sizeof junk;
}

TEST_F(HandoverTest, StrangersAreIgnored) {
  const auto handover = make_handover(0, ranks_);
  handover->take_step(0);
  const bool has_written = write_as_stranger(own_.name);
  mpi_->barrier();
  for (int step = 1; step < handover->num_steps(); ++step) {
    EXPECT_TRUE(has_taken(*handover, step));
    mpi_->barrier();
  }

  EXPECT_TRUE(has_written);
  for (int r = 0; r < ranks_.size(); ++r)
    EXPECT_EQ(segments_[r].data() != nullptr, r != ranks_.rank) << r;
}

INSTANTIATE_TEST_SUITE_P(Ways, EveryHandoverTest, ::testing::Range(0, kNumHandovers));

}  // namespace
}  // namespace zea::test_handover
