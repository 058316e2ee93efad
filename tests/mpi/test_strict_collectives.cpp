// SPDX-License-Identifier: Apache-2.0
// The faults that strict collectives are for: each is found, on every rank that can see it, and
// named.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "core/error.hpp"
#include "support/mpi_main.hpp"
#include "support/strict_collectives.hpp"

namespace zea::test_strict_collectives {
namespace {

class StrictTest : public ::testing::Test {
 protected:
  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  Collectives& strict() { return *strict_; }
  Counts ones() const { return Counts(size(), 1); }

  /// Returns the message of `call`'s CommError.
  static std::string fault_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const CommError& error) {
      return error.what();
    }
    return "no fault";
  }

  static void expect_text(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }

 private:
  Communicator communicator_ = testing::world().communicator();
  std::unique_ptr<Collectives> strict_ = make_strict_collectives(communicator_);
};

TEST_F(StrictTest, NamesRanksThatCallDifferentCollectives) {
  float value = 1;

  const std::string fault = fault_of([&] {
    if (rank() == 1)
      strict().broadcast(&value, 1, DType::Float32, 0).wait();
    else
      strict().all_reduce(&value, 1, DType::Float32, ReduceOp::Sum).wait();
  });

  expect_text(fault, "rank 1: call 1, broadcast(1 float32, root 0)");
  expect_text(fault, size() == 2 ? "rank 0: call 1, all_reduce(sum of 1 float32)" : "ranks 0, 2");
}

TEST_F(StrictTest, NamesRanksThatDifferInCountTypeOperationOrRoot) {
  std::vector<double> data(8);
  const bool odd = rank() == 1;

  const std::string count = fault_of(
      [&] { strict().all_reduce(data.data(), odd ? 2 : 3, DType::Float32, ReduceOp::Sum).wait(); });
  const std::string type = fault_of([&] {
    strict()
        .all_reduce(data.data(), 3, odd ? DType::Float64 : DType::Float32, ReduceOp::Sum)
        .wait();
  });
  const std::string operation = fault_of([&] {
    strict().all_reduce(data.data(), 3, DType::Float32, odd ? ReduceOp::Max : ReduceOp::Sum).wait();
  });
  const std::string root =
      fault_of([&] { strict().broadcast(data.data(), 3, DType::Float32, odd ? 1 : 0).wait(); });

  expect_text(count, "rank 1: call 1, all_reduce(sum of 2 float32)");
  expect_text(type, "rank 1: call 2, all_reduce(sum of 3 float64)");
  expect_text(operation, "rank 1: call 3, all_reduce(max of 3 float32)");
  expect_text(root, "rank 1: call 4, broadcast(3 float32, root 1)");
}

TEST_F(StrictTest, NamesRanksWhosePiecesDifferThoughTheSumsAgree) {
  Counts counts(size(), 2);
  if (rank() == 0) std::swap(++counts[0], --counts[1]);
  std::vector<float> all(2 * size());
  std::vector<float> own(3);

  const std::string fault =
      fault_of([&] { strict().all_gather(own.data(), all.data(), counts, DType::Float32).wait(); });

  expect_text(fault, "call different collectives");
}

TEST_F(StrictTest, NamesPairsThatDifferInAllToAll) {
  Counts sends = ones();
  if (rank() == 0) sends[1] = 2;
  std::vector<float> from(size() + 1), to(size());

  const std::string fault = fault_of(
      [&] { strict().all_to_all(from.data(), sends, to.data(), ones(), DType::Float32).wait(); });

  expect_text(fault, "rank 0 sends 2 elements to rank 1, which expects 1");
}

TEST_F(StrictTest, ARankThatIsLeftAloneFails) {
  const Communicator own = testing::world().communicator();
  auto impatient = make_strict_collectives_within(own, std::chrono::milliseconds(100));

  const std::string fault = rank() == 0 ? fault_of([&] { impatient->barrier(); }) : "";

  if (rank() == 0) expect_text(fault, size() == 2 ? "nothing heard from rank 1" : "ranks 1, 2");
  if (rank() == 0) expect_text(fault, "within 100 ms");
}

TEST_F(StrictTest, HidesWhatArrivesUntilItIsWaitedFor) {
  std::vector<float> own = {1.5f};
  std::vector<float> all(size(), 0.0f);
  std::vector<int32_t> numbers = {rank()};

  Pending gathering = strict().all_gather(own.data(), all.data(), ones(), DType::Float32);
  const std::vector<float> before = all;
  gathering.wait();
  Pending reducing = strict().all_reduce(numbers.data(), 1, DType::Int32, ReduceOp::Max);
  const int32_t number_before = numbers[0];
  reducing.wait();

  for (float value : before) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(all, std::vector<float>(size(), 1.5f));
  EXPECT_EQ(number_before, -1);
  EXPECT_EQ(numbers[0], size() - 1);
}

TEST_F(StrictTest, FindsASentBufferThatChanges) {
  std::vector<float> own = {1.5f};
  std::vector<float> all(size());

  Pending gathering = strict().all_gather(own.data(), all.data(), ones(), DType::Float32);
  own[0] = 2.5f;

  expect_text(fault_of([&] { gathering.wait(); }), "was changed before it was waited for");
}

TEST_F(StrictTest, FindsBuffersThatOverlap) {
  std::vector<float> data(2 * size());

  expect_text(
      fault_of([&] {
        strict().reduce_scatter(data.data(), data.data() + 1, ones(), DType::Float32).wait();
      }),
      "overlap");
}

TEST_F(StrictTest, FindsAPendingThatNobodyWaitedFor) {
  float value = 1;
  { Pending dropped = strict().all_reduce(&value, 1, DType::Float32, ReduceOp::Sum); }

  const std::string fault = fault_of([&] { strict().barrier(); });

  expect_text(fault, "all_reduce(sum of 1 float32) on world was dropped");
  strict().barrier();
}

TEST_F(StrictTest, SendsWaitForTheirReceives) {
  float value = static_cast<float>(rank());
  if (rank() == 0) {
    Pending sending = strict().send(&value, 1, DType::Float32, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int i = 0; i < 100; ++i) ASSERT_FALSE(sending.test());
    strict().barrier();
    sending.wait();
    return;
  }
  strict().barrier();
  if (rank() != 1) return;
  strict().recv(&value, 1, DType::Float32, 0).wait();
  EXPECT_EQ(value, 0.0f);
}

TEST_F(StrictTest, NamesMessagesThatDiffer) {
  double value[4] = {};
  if (rank() > 1) return;
  Pending sending;
  std::string fault;

  if (rank() == 0) {
    sending = strict().send(value, 4, DType::Float32, 1);
    sending.wait();
  } else {
    fault = fault_of([&] { strict().recv(value, 3, DType::Float64, 0).wait(); });
    expect_text(fault, "rank 0 of world sends call 0, message(4 float32)");
    expect_text(fault, "expects call 0, message(3 float64)");
  }
}

}  // namespace
}  // namespace zea::test_strict_collectives
