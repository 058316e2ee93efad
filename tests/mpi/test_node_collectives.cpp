// SPDX-License-Identifier: Apache-2.0
// Collectives in shared memory promise more than the contract: the bits of MPI's results, buffers
// that may be changed after a wait whatever the peers still do, and MPI where the memory cannot be
// had.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "comm/agree.hpp"
#include "mpi/shared_collectives.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_node_collectives {
namespace {

constexpr DType kAll[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16,
                          DType::Int64,   DType::Int32,   DType::UInt8};
/// Small, one round through the slots, several rounds.
constexpr int64_t kCounts[] = {1, 33, 5003, 150001};

class NodeCollectivesTest : public ::testing::Test {
 protected:
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Collectives& node() { return *node_; }
  Collectives& mpi() { return *mpi_; }
  const Communicator& communicator() const { return communicator_; }

  /// Finite numbers, other ones on every rank.
  void fill(void* data, DType dtype, int64_t count, int seed = 0) const {
    std::mt19937 random(1000 * seed + rank());
    if (is_floating(dtype)) {
      std::vector<double> values(count);
      for (double& value : values) value = std::normal_distribution<double>(0, 3)(random);
      convert_elements(DType::Float64, values.data(), dtype, data, count);
      return;
    }
    auto* bytes = static_cast<unsigned char*>(data);
    for (size_t i = 0; i < count * element_bytes(dtype); ++i)
      bytes[i] = static_cast<unsigned char>(random());
  }

  Counts uneven(int64_t count) const {
    Counts counts(size(), 0);
    for (int r = 0; r < size(); ++r) counts[r] = size() > 2 && r == 1 ? 0 : count / (r + 1);
    return counts;
  }

  /// Where peers reach it, or not.
  std::shared_ptr<void> memory(bool allocated, int64_t bytes) {
    return allocated ? node().allocate(bytes) : node().Collectives::allocate(bytes);
  }

  /// As make_mpi_collectives takes it for long buffers: by cuts, each in rank order.
  std::vector<std::byte> reduced_by_mpi(const void* data, int64_t count, DType dtype) {
    Counts counts(size(), count / size());
    counts.back() += count % size();
    std::vector<std::byte> own(counts[rank()] * element_bytes(dtype));
    std::vector<std::byte> all(count * element_bytes(dtype));
    mpi().reduce_scatter(data, own.data(), counts, dtype).wait();
    mpi().all_gather(own.data(), all.data(), counts, dtype).wait();
    return all;
  }

 private:
  Communicator communicator_ = testing::world().communicator();
  std::unique_ptr<Collectives> node_ = testing::make_on_one_node(communicator_);
  std::unique_ptr<Collectives> mpi_ = make_mpi_collectives(communicator_);
};

TEST_F(NodeCollectivesTest, ChoiceFollowsTheNodes) {
  EXPECT_STREQ(node().name(), "node");
  EXPECT_STREQ(make_host_collectives(communicator())->name(), "node");
  const char* on_twos = size() == 2 ? "node" : size() == 4 ? "two-level" : "mpi";
  EXPECT_STREQ(testing::make_on_nodes_of_two(communicator())->name(), on_twos);
  EXPECT_STREQ(testing::make_with_one_apart(communicator())->name(), "mpi");
  EXPECT_EQ(testing::make_with_one_apart(communicator())->note(), "");
  EXPECT_EQ(node().note(), "");
}

TEST_F(NodeCollectivesTest, AllReduceGivesTheBitsOfMpi) {
  for (bool allocated : {false, true})
    for (DType dtype : kAll)
      for (int64_t count : kCounts) {
        const int64_t bytes = count * static_cast<int64_t>(element_bytes(dtype));
        const auto data = memory(allocated, bytes);
        fill(data.get(), dtype, count);
        const auto expected = reduced_by_mpi(data.get(), count, dtype);

        node().all_reduce(data.get(), count, dtype, ReduceOp::Sum).wait();

        ASSERT_EQ(std::memcmp(data.get(), expected.data(), bytes), 0)
            << count << " " << dtype_name(dtype) << (allocated ? ", in place" : "");
      }
}

TEST_F(NodeCollectivesTest, MaximaAndMinimaAreThoseOfMpi) {
  for (bool allocated : {false, true})
    for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min}) {
      const int64_t count = 50001;
      const auto data = memory(allocated, count * 2);
      fill(data.get(), DType::BFloat16, count);
      std::vector<std::byte> expected(count * 2);
      std::memcpy(expected.data(), data.get(), expected.size());
      mpi().all_reduce(expected.data(), count, DType::BFloat16, op).wait();

      node().all_reduce(data.get(), count, DType::BFloat16, op).wait();

      ASSERT_EQ(std::memcmp(data.get(), expected.data(), expected.size()), 0);
    }
}

TEST_F(NodeCollectivesTest, ReduceScatterAndAllGatherGiveTheBitsOfMpi) {
  for (bool allocated : {false, true})
    for (DType dtype : kAll)
      for (int64_t count : kCounts) {
        const Counts counts = uneven(count);
        const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const int64_t width = static_cast<int64_t>(element_bytes(dtype));
        const auto all = memory(allocated, total * width);
        const auto own = memory(allocated, counts[rank()] * width);
        std::vector<std::byte> expected_own(counts[rank()] * width);
        std::vector<std::byte> expected_all(total * width);
        fill(all.get(), dtype, total);
        mpi().reduce_scatter(all.get(), expected_own.data(), counts, dtype).wait();
        mpi().all_gather(expected_own.data(), expected_all.data(), counts, dtype).wait();

        node().reduce_scatter(all.get(), own.get(), counts, dtype).wait();
        node().all_gather(own.get(), all.get(), counts, dtype).wait();

        ASSERT_EQ(std::memcmp(own.get(), expected_own.data(), expected_own.size()), 0);
        ASSERT_EQ(std::memcmp(all.get(), expected_all.data(), expected_all.size()), 0);
      }
}

TEST_F(NodeCollectivesTest, PlacesWithinAnAllocationNeedNotBeAligned) {
  const int64_t count = 20011;
  const auto memory = node().allocate((count + 10) * 2);
  uint16_t* data = static_cast<uint16_t*>(memory.get()) + 1 + rank();
  data[-1] = data[count] = 77;
  fill(data, DType::BFloat16, count);
  const auto expected = reduced_by_mpi(data, count, DType::BFloat16);

  node().all_reduce(data, count, DType::BFloat16, ReduceOp::Sum).wait();

  EXPECT_EQ(std::memcmp(data, expected.data(), expected.size()), 0);
  EXPECT_EQ(data[-1], 77);
  EXPECT_EQ(data[count], 77);
}

TEST_F(NodeCollectivesTest, RanksMayHaveTheirBuffersInDifferentPlaces) {
  const int64_t count = 30001;
  const auto first = node().allocate(count * 4);
  const auto second = node().allocate(count * 4);
  std::vector<float> ordinary(count);
  void* of_two[] = {first.get(), second.get()};
  void* of_three[] = {first.get(), ordinary.data(), second.get()};
  for (void* data : {of_two[rank() % 2], of_three[rank() % 3]}) {
    fill(data, DType::Float32, count);
    const auto expected = reduced_by_mpi(data, count, DType::Float32);

    node().all_reduce(data, count, DType::Float32, ReduceOp::Sum).wait();

    EXPECT_EQ(std::memcmp(data, expected.data(), expected.size()), 0);
  }
}

TEST_F(NodeCollectivesTest, BuffersMayChangeAfterAWait) {
  const auto pause = [&](int turn) {
    if (turn % size() == rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  for (bool allocated : {false, true})
    for (int64_t count : {300, 40000}) {
      const Counts counts(size(), count);
      const auto all = memory(allocated, size() * count * 4);
      const auto own = memory(allocated, count * 4);
      float* sums = static_cast<float*>(own.get());
      float* values = static_cast<float*>(all.get());
      for (int turn = 0; turn < 12; ++turn) {
        std::fill_n(values, size() * count, static_cast<float>(turn));
        pause(turn);
        Pending scattering = node().reduce_scatter(values, sums, counts, DType::Float32);
        pause(turn + 1);
        scattering.wait();
        std::fill_n(values, size() * count, -1.0f);
        ASSERT_EQ(std::count(sums, sums + count, static_cast<float>(size() * turn)), count);

        std::fill_n(sums, count, static_cast<float>(10 * turn + rank()));
        pause(turn + 2);
        Pending gathering = node().all_gather(sums, values, counts, DType::Float32);
        pause(turn + 3);
        gathering.wait();
        std::fill_n(sums, count, -1.0f);
        for (int r = 0; r < size(); ++r)
          ASSERT_EQ(std::count(values + r * count, values + (r + 1) * count, 10.0f * turn + r),
                    count);
      }
    }
}

TEST_F(NodeCollectivesTest, CommunicatorsAreWaitedForInAnyOrder) {
  const auto other = make_host_collectives(communicator());
  const int64_t count = 100003;
  for (bool allocated : {false, true}) {
    std::vector<std::shared_ptr<void>> data;
    std::vector<Pending> pending;
    for (int m = 0; m < 24; ++m) data.push_back(memory(allocated && m % 3, count * 4));
    for (int m = 0; m < 24; ++m) {
      std::fill_n(static_cast<float*>(data[m].get()), count, static_cast<float>(rank() + m));
      Collectives& from = m % 2 ? *other : node();
      const int64_t some = m % 4 ? count : 700;
      pending.push_back(from.all_reduce(data[m].get(), some, DType::Float32, ReduceOp::Sum));
    }

    for (int m = 0; m < 24; ++m) pending[(m * (rank() % 2 ? 7 : 23) + rank()) % 24].wait();

    for (int m = 0; m < 24; ++m) {
      const float* values = static_cast<const float*>(data[m].get());
      const int64_t some = m % 4 ? count : 700;
      const float sum = static_cast<float>(size() * m + size() * (size() - 1) / 2);
      ASSERT_EQ(std::count(values, values + some, sum), some) << m;
    }
  }
}

TEST_F(NodeCollectivesTest, AllocationsAreZeroedAndFreedInAnyOrder) {
  constexpr int kMany = 6;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<void>> memory;
    for (int m = 0; m < kMany; ++m) {
      const int64_t bytes = 40000 + 1000 * rank();
      memory.push_back(node().allocate(bytes));
      const char* data = static_cast<const char*>(memory.back().get());
      ASSERT_EQ(std::count(data, data + bytes, 0), bytes);
    }
    for (int m = 0; m < kMany - 1; ++m) memory[rank() % 2 ? m : kMany - 2 - m].reset();
    float* data = static_cast<float*>(memory.back().get());
    std::fill_n(data, 10000, 1.0f);

    node().all_reduce(data, 10000, DType::Float32, ReduceOp::Sum).wait();

    ASSERT_EQ(std::count(data, data + 10000, static_cast<float>(size())), 10000);
  }
}

TEST_F(NodeCollectivesTest, AllocationsOutliveTheirCollectives) {
  auto collectives = testing::make_on_one_node(communicator());
  const auto memory = collectives->allocate(100000);
  collectives.reset();
  std::memset(memory.get(), 1, 100000);
  EXPECT_EQ(static_cast<char*>(memory.get())[99999], 1);
}

/// Uses collectives that fell back, and says why they did.
std::string note_of_working(Collectives& collectives) {
  EXPECT_STREQ(collectives.name(), "mpi");
  std::vector<float> data(20000, 1.0f);
  collectives.all_reduce(data.data(), 20000, DType::Float32, ReduceOp::Sum).wait();
  EXPECT_EQ(std::count(data.begin(), data.end(), static_cast<float>(collectives.size())), 20000);
  return collectives.note();
}

TEST_F(NodeCollectivesTest, OneRankWithoutMemorySendsAllToMpi) {
  NodeOptions options;
  options.node = 0;
  if (rank() == size() - 1) options.max_shared_bytes = 1000;

  const std::string note = note_of_working(*make_node_collectives(communicator(), options));

  EXPECT_NE(note.find("more than the 1000 allowed"), std::string::npos) << note;
  EXPECT_NE(note.find("collectives go over MPI"), std::string::npos) << note;
}

TEST_F(NodeCollectivesTest, TheNodeWithoutMemorySaysWhy) {
  if (size() != 4) GTEST_SKIP() << "two nodes of two";
  NodeOptions options;
  options.node = rank() / 2;
  if (rank() == 3) options.max_shared_bytes = 1000;
  const auto collectives = make_node_collectives(communicator(), options);

  const std::string own = note_of_working(*collectives);

  EXPECT_EQ(own.find("more than the 1000 allowed") != std::string::npos, rank() >= 2) << own;
  EXPECT_EQ(own.empty(), rank() < 2) << own;
  const int node = rank() / 2;
  const std::string all = note_of_nodes(mpi(), {node, "n" + std::to_string(node), own});
  EXPECT_TRUE(all.starts_with(node == 1 ? own : "ranks of a node do not meet")) << all;
  EXPECT_TRUE(all.ends_with(" (on 1 of 2 nodes: n1)")) << all;
}

TEST_F(NodeCollectivesTest, LimitOnFileSizesIsRespected) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit tight = before;
  if (rank() == 0) tight.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const auto collectives = make_host_collectives(communicator());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);

  const std::string note = note_of_working(*collectives);

  EXPECT_NE(note.find("ulimit -f"), std::string::npos) << note;
}

TEST_F(NodeCollectivesTest, BuffersThatDoNotFitAreOrdinary) {
  NodeOptions options;
  options.node = 0;
  options.max_shared_bytes = 2 << 20;
  const auto collectives = make_node_collectives(communicator(), options);
  ASSERT_STREQ(collectives->name(), "node");
  EXPECT_EQ(collectives->note(), "");

  const auto memory = collectives->allocate(rank() == 0 ? 4 << 20 : 1 << 20);
  float* data = static_cast<float*>(memory.get());
  ASSERT_EQ(std::count(data, data + 100000, 0.0f), 100000);
  std::fill_n(data, 100000, 2.0f);
  collectives->all_reduce(data, 100000, DType::Float32, ReduceOp::Sum).wait();

  EXPECT_EQ(std::count(data, data + 100000, 2.0f * size()), 100000);
  EXPECT_NE(collectives->note().find("4194304"), std::string::npos) << collectives->note();
}

TEST_F(NodeCollectivesTest, TwoLevelsSumAlikeOnAllRanks) {
  const auto levels = testing::make_on_nodes_of_two(communicator());
  for (DType dtype : {DType::Float32, DType::BFloat16, DType::Float64})
    for (int64_t count : kCounts) {
      const int64_t bytes = count * static_cast<int64_t>(element_bytes(dtype));
      std::vector<std::byte> data(bytes);
      fill(data.data(), dtype, count);
      std::vector<std::byte> again = data;

      Pending first = levels->all_reduce(data.data(), count, dtype, ReduceOp::Sum);
      Pending second = levels->all_reduce(again.data(), count, dtype, ReduceOp::Sum);
      (rank() % 2 ? first : second).wait();
      first.wait();
      second.wait();

      EXPECT_EQ(std::memcmp(data.data(), again.data(), bytes), 0);
      mpi().broadcast(again.data(), bytes, DType::UInt8, 0).wait();
      EXPECT_EQ(std::memcmp(data.data(), again.data(), bytes), 0);
    }
}

/// This thread in a network of its own; it is back in the common one at the end, if it may.
class NetworkOfItsOwn {
 public:
  NetworkOfItsOwn()
      : before_(open("/proc/self/ns/net", O_RDONLY)), is_apart_(unshare(CLONE_NEWNET) == 0) {}
  NetworkOfItsOwn(const NetworkOfItsOwn&) = delete;
  NetworkOfItsOwn& operator=(const NetworkOfItsOwn&) = delete;
  ~NetworkOfItsOwn() {
    if (is_apart_) setns(before_, CLONE_NEWNET);
    close(before_);
  }
  bool is_apart() const { return is_apart_; }

 private:
  const int before_;
  const bool is_apart_;
};

/// Local sockets do not reach into another network namespace, so that MPI does the work. This is
/// the last test: who owns a user namespace may not go back.
TEST_F(NodeCollectivesTest, RanksWithNetworksOfTheirOwnUseMpi) {
  const NetworkOfItsOwn network;
  int apart = network.is_apart();
  mpi().all_reduce(&apart, 1, DType::Int32, ReduceOp::Min).wait();
  if (!apart) GTEST_SKIP() << "not allowed here";

  const std::string note = note_of_working(*testing::make_on_one_node(communicator()));

  EXPECT_NE(note.find("cannot reach each other's shared memory"), std::string::npos) << note;
}

}  // namespace
}  // namespace zea::test_node_collectives
