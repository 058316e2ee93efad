// SPDX-License-Identifier: Apache-2.0
// Every operation of the contract against the same result worked out on one rank, for the MPI
// collectives, the strict ones, those with checksums, MPI with messages cut into pieces of 7
// elements, and those that meet in shared memory: on one node and on several, in place and not. All
// of them write a record.
#include "comm/collectives.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "comm/checksummed_collectives.hpp"
#include "comm/recorded_collectives.hpp"
#include "core/action_record.hpp"
#include "mpi/shared_collectives.hpp"
#include "support/mpi_main.hpp"
#include "support/strict_collectives.hpp"

namespace zea::test_collectives {
namespace {

using Bytes = std::vector<std::byte>;

double load(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::Int64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DType::Int32:
      return static_cast<const int32_t*>(data)[i];
    case DType::UInt8:
      return static_cast<const uint8_t*>(data)[i];
    default:
      break;
  }
  double value = 0;
  const char* element = static_cast<const char*>(data) + i * element_bytes(dtype);
  convert_elements(dtype, element, DType::Float64, &value, 1);
  return value;
}

void store(void* data, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case DType::Int64:
      static_cast<int64_t*>(data)[i] = static_cast<int64_t>(value);
      return;
    case DType::Int32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
      return;
    case DType::UInt8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value);
      return;
    default:
      break;
  }
  char* element = static_cast<char*>(data) + i * element_bytes(dtype);
  convert_elements(DType::Float64, &value, dtype, element, 1);
}

/// Small whole numbers that every type holds exactly, different for ranks and places.
double value_of(int rank, int64_t i) {
  return static_cast<double>((7 * rank + 3 * i + 1) % 23);
}

Bytes buffer(DType dtype, int64_t count) {
  return Bytes(count * element_bytes(dtype));
}

Bytes filled(DType dtype, int64_t count, const std::function<double(int64_t)>& value) {
  Bytes data = buffer(dtype, count);
  for (int64_t i = 0; i < count; ++i) store(data.data(), dtype, i, value(i));
  return data;
}

void expect_values(const Bytes& data, DType dtype, const std::function<double(int64_t)>& value) {
  const int64_t count = static_cast<int64_t>(data.size() / element_bytes(dtype));
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(load(data.data(), dtype, i), value(i))
        << "element " << i << ", " << dtype_name(dtype);
}

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t place(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

constexpr DType kAll[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16,
                          DType::Int64,   DType::Int32,   DType::UInt8};

struct Kind {
  const char* name;
  std::unique_ptr<Collectives> (*make)(const Communicator&);
};

std::unique_ptr<Collectives> make_cut_in_pieces(const Communicator& communicator) {
  return make_chunked_mpi_collectives(communicator, 7);
}

/// With the collectives that it checks.
class CheckedCollectives : public WrappedCollectives {
 public:
  explicit CheckedCollectives(std::unique_ptr<Collectives> real)
      : WrappedCollectives(*real), real_(std::move(real)) {
    std::vector<int> ranks(size());
    std::iota(ranks.begin(), ranks.end(), 0);
    checked_ = make_checksummed_collectives(*real_, "all", ranks);
  }

  Pending start(const CollectiveCall& call) override { return checked_->start(call); }

 private:
  std::unique_ptr<Collectives> real_, checked_;
};

std::unique_ptr<Collectives> make_checked(const Communicator& communicator) {
  return std::make_unique<CheckedCollectives>(make_mpi_collectives(communicator));
}

std::unique_ptr<Collectives> make_checked_on_one_node(const Communicator& communicator) {
  return std::make_unique<CheckedCollectives>(testing::make_on_one_node(communicator));
}

/// Records each call and passes it on.
class SeenCollectives : public WrappedCollectives {
 public:
  using WrappedCollectives::WrappedCollectives;

  Pending start(const CollectiveCall& call) override {
    kinds.push_back(call.kind);
    return inner_.start(call);
  }

  std::vector<CallKind> kinds;
};

class CollectivesTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    real_ = GetParam().make(communicator_);
    recorded_ = make_recorded_collectives(*real_, record_, "all");
  }
  /// Whatever was begun has ended, in the record, too.
  void TearDown() override {
    const RankState state = read_rank_state(memory_.data());
    EXPECT_TRUE(state.open.empty());
    EXPECT_FALSE(state.waits);
    EXPECT_EQ(state.calls.size(),
              std::min<size_t>(state.calls_of_group.begin()->second, kRecordedActions));
    for (const RecordedSpan& call : state.calls) {
      EXPECT_GT(call.end, 0) << call.name;
    }
  }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Collectives& all() { return *recorded_; }

  /// Uneven, one of them zero where there are several ranks.
  Counts uneven(int64_t base) const {
    Counts counts;
    for (int r = 0; r < size(); ++r) counts.push_back(r == 1 ? 0 : base + 5 * r);
    return counts;
  }

  double sum_of_ranks(int64_t i) const {
    double sum = 0;
    for (int r = 0; r < size(); ++r) sum += value_of(r, i);
    return sum;
  }

 private:
  Communicator communicator_ = testing::world().communicator();
  std::vector<std::byte> memory_ = std::vector<std::byte>(ActionRecord::memory_bytes());
  ActionRecord record_{memory_.data()};
  std::unique_ptr<Collectives> real_, recorded_;
};

INSTANTIATE_TEST_SUITE_P(
    , CollectivesTest,
    ::testing::Values(Kind{"mpi", make_mpi_collectives}, Kind{"strict", make_strict_collectives},
                      Kind{"checksummed", make_checked},
                      Kind{"checksummed_node", make_checked_on_one_node},
                      Kind{"pieces", make_cut_in_pieces}, Kind{"node", testing::make_on_one_node},
                      Kind{"in_place", testing::make_in_place},
                      Kind{"two_level", testing::make_on_nodes_of_two},
                      Kind{"two_level_in_place", testing::make_in_place_on_nodes_of_two},
                      Kind{"one_apart", testing::make_with_one_apart}),
    [](const auto& info) { return info.param.name; });

TEST_P(CollectivesTest, AllReduceCombinesEveryType) {
  for (DType dtype : kAll)
    for (int64_t count : {0, 1, 3, 100}) {
      Bytes sum = filled(dtype, count, [&](int64_t i) { return value_of(rank(), i); });
      Bytes highest = sum;
      Bytes lowest = sum;

      all().all_reduce(sum.data(), count, dtype, ReduceOp::Sum).wait();
      all().all_reduce(highest.data(), count, dtype, ReduceOp::Max).wait();
      all().all_reduce(lowest.data(), count, dtype, ReduceOp::Min).wait();

      expect_values(sum, dtype, [&](int64_t i) { return sum_of_ranks(i); });
      expect_values(highest, dtype, [&](int64_t i) {
        double best = 0;
        for (int r = 0; r < size(); ++r) best = std::max(best, value_of(r, i));
        return best;
      });
      expect_values(lowest, dtype, [&](int64_t i) {
        double best = 1e9;
        for (int r = 0; r < size(); ++r) best = std::min(best, value_of(r, i));
        return best;
      });
    }
}

TEST_P(CollectivesTest, SumsOfSixteenBitsAreRoundedOnce) {
  // 256 + 0.5 is 256 in bf16: only a sum in fp32 counts the halves.
  Bytes data = filled(DType::BFloat16, 40, [&](int64_t) { return rank() == 0 ? 256.0 : 1.0; });

  all().all_reduce(data.data(), 40, DType::BFloat16, ReduceOp::Sum).wait();

  const float exact = 256.0f + static_cast<float>(size() - 1);
  const double rounded = bfloat16_to_float(float_to_bfloat16(exact));
  expect_values(data, DType::BFloat16, [&](int64_t) { return rounded; });
}

TEST_P(CollectivesTest, LargeSumsAreEqualOnAllRanks) {
  const int64_t count = GetParam().name == std::string("pieces") ? 20000 : 1000003;
  Bytes data = filled(DType::Float32, count,
                      [&](int64_t i) { return std::sin(0.1 * static_cast<double>(i) + rank()); });

  all().all_reduce(data.data(), count, DType::Float32, ReduceOp::Sum).wait();

  Bytes of_root = data;
  all().broadcast(of_root.data(), count, DType::Float32, 0).wait();
  EXPECT_EQ(std::memcmp(of_root.data(), data.data(), data.size()), 0);
  for (int64_t i = 0; i < count; i += 997) {
    double sum = 0;
    for (int r = 0; r < size(); ++r) sum += std::sin(0.1 * static_cast<double>(i) + r);
    ASSERT_NEAR(load(data.data(), DType::Float32, i), sum, 1e-6 * size());
  }
}

TEST_P(CollectivesTest, MaximumAndMinimumKeepNan) {
  for (int64_t count : {8, 20000})
    for (ReduceOp op : {ReduceOp::Max, ReduceOp::Min})
      for (int strange = 0; strange < size(); ++strange) {
        Bytes data = filled(DType::Float32, count, [&](int64_t) { return rank() + 1; });
        if (rank() == strange)
          store(data.data(), DType::Float32, 7, std::numeric_limits<double>::quiet_NaN());

        all().all_reduce(data.data(), count, DType::Float32, op).wait();

        EXPECT_TRUE(std::isnan(load(data.data(), DType::Float32, 7))) << count;
        EXPECT_EQ(load(data.data(), DType::Float32, 6), op == ReduceOp::Max ? size() : 1);
      }
}

TEST_P(CollectivesTest, AllGatherPacksUnevenPieces) {
  for (DType dtype : kAll) {
    const Counts counts = uneven(11);
    const Bytes own = filled(dtype, counts[rank()], [&](int64_t i) { return value_of(rank(), i); });
    Bytes received = buffer(dtype, total(counts));

    all().all_gather(own.data(), received.data(), counts, dtype).wait();

    for (int r = 0; r < size(); ++r)
      for (int64_t i = 0; i < counts[r]; ++i)
        ASSERT_EQ(load(received.data(), dtype, place(counts, r) + i), value_of(r, i));
  }
}

TEST_P(CollectivesTest, AllGatherWorksInPlace) {
  const Counts counts = uneven(2);
  Bytes data = buffer(DType::Int64, total(counts));
  std::byte* own = data.data() + place(counts, rank()) * 8;
  for (int64_t i = 0; i < counts[rank()]; ++i) store(own, DType::Int64, i, 100 * rank() + i);

  all().all_gather(own, data.data(), counts, DType::Int64).wait();

  for (int r = 0; r < size(); ++r)
    for (int64_t i = 0; i < counts[r]; ++i)
      ASSERT_EQ(load(data.data(), DType::Int64, place(counts, r) + i), 100 * r + i);
}

TEST_P(CollectivesTest, ReduceScatterGivesEachRankItsPiece) {
  for (DType dtype : kAll) {
    const Counts counts = uneven(9);
    const Bytes own = filled(dtype, total(counts), [&](int64_t i) { return value_of(rank(), i); });
    Bytes received = buffer(dtype, counts[rank()]);

    all().reduce_scatter(own.data(), received.data(), counts, dtype).wait();

    const int64_t first = place(counts, rank());
    expect_values(received, dtype, [&](int64_t i) { return sum_of_ranks(first + i); });
  }
}

TEST_P(CollectivesTest, AllToAllSendsWhatTheCountsSay) {
  const auto count = [](int from, int to) { return int64_t{(from + 2 * to) % 3 * 4}; };
  Counts sends, receives;
  for (int r = 0; r < size(); ++r) {
    sends.push_back(count(rank(), r));
    receives.push_back(count(r, rank()));
  }
  const Bytes own =
      filled(DType::Float64, total(sends), [&](int64_t i) { return 1000 * rank() + i; });
  Bytes received = buffer(DType::Float64, total(receives));

  all().all_to_all(own.data(), sends, received.data(), receives, DType::Float64).wait();

  for (int r = 0; r < size(); ++r) {
    int64_t first = 0;
    for (int before = 0; before < rank(); ++before) first += count(r, before);
    for (int64_t i = 0; i < receives[r]; ++i)
      ASSERT_EQ(load(received.data(), DType::Float64, place(receives, r) + i),
                1000 * r + first + i);
  }
}

TEST_P(CollectivesTest, BroadcastAndGatherFromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    const Counts counts = uneven(3 + root);
    Bytes word = filled(DType::UInt8, 20, [&](int64_t i) { return rank() == root ? i : 99; });
    const Bytes own =
        filled(DType::Int32, counts[rank()], [&](int64_t i) { return value_of(rank(), i); });
    Bytes collected = buffer(DType::Int32, rank() == root ? total(counts) : 0);

    all().broadcast(word.data(), 20, DType::UInt8, root).wait();
    all().gather(own.data(), collected.data(), counts, DType::Int32, root).wait();

    expect_values(word, DType::UInt8, [](int64_t i) { return i; });
    for (int r = 0; r < size() && rank() == root; ++r)
      for (int64_t i = 0; i < counts[r]; ++i)
        ASSERT_EQ(load(collected.data(), DType::Int32, place(counts, r) + i), value_of(r, i));
  }
}

TEST_P(CollectivesTest, MessagesGoRound) {
  const int next = (rank() + 1) % size();
  const int before = (rank() + size() - 1) % size();
  Bytes own = filled(DType::Float32, 50, [&](int64_t i) { return value_of(rank(), i); });
  Bytes received = buffer(DType::Float32, 50);

  Pending sending = all().send(own.data(), 50, DType::Float32, next);
  Pending receiving = all().recv(received.data(), 50, DType::Float32, before);
  receiving.wait();
  sending.wait();

  expect_values(received, DType::Float32, [&](int64_t i) { return value_of(before, i); });
}

TEST_P(CollectivesTest, ExchangesSwapNeighbours) {
  const int peer = rank() ^ 1;
  if (peer >= size()) return;
  Bytes own = filled(DType::Float32, 30, [&](int64_t i) { return value_of(rank(), i); });
  Bytes received = buffer(DType::Float32, 30);

  all()
      .exchange({{own.data(), 30, DType::Float32, peer}},
                {{received.data(), 30, DType::Float32, peer}})
      .wait();

  expect_values(received, DType::Float32, [&](int64_t i) { return value_of(peer, i); });
}

TEST_P(CollectivesTest, ManyAreUnderWayAndWaitedForInAnyOrder) {
  constexpr int kMany = 30;
  const int64_t count = GetParam().name == std::string("pieces") ? 90 : 9000;
  std::vector<Bytes> data;
  std::vector<Pending> pending;
  for (int m = 0; m < kMany; ++m)
    data.push_back(filled(m % 2 ? DType::Float64 : DType::BFloat16, count,
                          [&](int64_t) { return rank() + m; }));

  for (int m = 0; m < kMany; ++m)
    pending.push_back(all().all_reduce(data[m].data(), count,
                                       m % 2 ? DType::Float64 : DType::BFloat16, ReduceOp::Sum));
  for (int m = 0; m < kMany; ++m) pending[rank() % 2 ? m : kMany - 1 - m].wait();

  for (int m = 0; m < kMany; ++m)
    expect_values(data[m], m % 2 ? DType::Float64 : DType::BFloat16,
                  [&](int64_t) { return size() * m + size() * (size() - 1) / 2; });
}

TEST_P(CollectivesTest, TestFinishesAndAllowsUse) {
  Bytes data = filled(DType::Float32, 30000, [&](int64_t) { return 1; });
  Pending pending = all().all_reduce(data.data(), 30000, DType::Float32, ReduceOp::Sum);

  while (!pending.test()) continue;

  expect_values(data, DType::Float32, [&](int64_t) { return size(); });
  pending.wait();
  EXPECT_TRUE(pending.test());
}

TEST_P(CollectivesTest, BarrierWaitsForAll) {
  for (int i = 0; i < 3; ++i) all().barrier();
}

TEST_P(CollectivesTest, AWrapperSeesEveryKindOfCall) {
  const Counts ones(size(), 1);
  const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
  std::vector<float> own(1), received(1), from(size()), to(size());
  SeenCollectives seen(all());
  Pending sending;
  const DType type = DType::Float32;

  switch (CallKind{}) {  // all of them: a kind that has no case does not compile
    case CallKind::AllReduce:
      seen.all_reduce(own.data(), 1, type, ReduceOp::Sum).wait();
      [[fallthrough]];
    case CallKind::AllGather:
      seen.all_gather(own.data(), to.data(), ones, type).wait();
      [[fallthrough]];
    case CallKind::ReduceScatter:
      seen.reduce_scatter(from.data(), received.data(), ones, type).wait();
      [[fallthrough]];
    case CallKind::AllToAll:
      seen.all_to_all(from.data(), ones, to.data(), ones, type).wait();
      [[fallthrough]];
    case CallKind::Broadcast:
      seen.broadcast(own.data(), 1, type, 0).wait();
      [[fallthrough]];
    case CallKind::Gather:
      seen.gather(own.data(), to.data(), ones, type, 0).wait();
      [[fallthrough]];
    case CallKind::Send:
      sending = seen.send(own.data(), 1, type, next);
      [[fallthrough]];
    case CallKind::Recv:
      seen.recv(received.data(), 1, type, before).wait();
      sending.wait();
      [[fallthrough]];
    case CallKind::Exchange:
      seen.exchange({{own.data(), 1, type, next}}, {{received.data(), 1, type, before}}).wait();
      [[fallthrough]];
    case CallKind::Barrier:
      seen.barrier();
  }

  std::vector<CallKind> every;
  for (int kind = 0; kind <= static_cast<int>(CallKind::Barrier); ++kind)
    every.push_back(static_cast<CallKind>(kind));
  EXPECT_EQ(seen.kinds, every);
}

}  // namespace
}  // namespace zea::test_collectives
