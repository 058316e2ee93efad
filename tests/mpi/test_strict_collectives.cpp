// SPDX-License-Identifier: Apache-2.0
// The faults that strict collectives are for: each is found, on every rank that can see it, and
// named.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <iterator>
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

/// A wrong use of collectives, and words of the message that reports it.
struct PlantedError {
  const char* name;
  const char* says;
  bool is_everywhere;  ///< every rank reports it, else at least one
  void (*plant)(Collectives& strict,
                bool is_odd);  ///< is_odd: true on rank 1, which makes the error
};

constexpr int64_t kCount = 8;
using Floats = std::array<float, 64>;

Counts each(const Collectives& strict, int64_t count) {
  return Counts(static_cast<size_t>(strict.size()), count);
}

/// Makes a call while another call is in progress; the other call always ends.
template <class Call>
void call_during(Pending& other, const Call& call) {
  try {
    call();
  } catch (...) {
    other.wait();
    throw;
  }
}

const PlantedError kPlantedErrors[] = {
    {"another collective", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       if (is_odd)
         strict.broadcast(data.data(), kCount, DType::Float32, 0).wait();
       else
         strict.all_reduce(data.data(), kCount, DType::Float32, ReduceOp::Sum).wait();
     }},
    {"another count", "rank 1: call 1, all_reduce(sum of 7 float32)", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       strict.all_reduce(data.data(), kCount - is_odd, DType::Float32, ReduceOp::Sum).wait();
     }},
    {"another type", "rank 1: call 1, all_reduce(sum of 8 float64)", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       const DType type = is_odd ? DType::Float64 : DType::Float32;
       strict.all_reduce(data.data(), kCount, type, ReduceOp::Sum).wait();
     }},
    {"another reduction", "rank 1: call 1, all_reduce(max of 8 float32)", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       const ReduceOp op = is_odd ? ReduceOp::Max : ReduceOp::Sum;
       strict.all_reduce(data.data(), kCount, DType::Float32, op).wait();
     }},
    {"another root", "rank 1: call 1, broadcast(8 float32, root 1)", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       strict.broadcast(data.data(), kCount, DType::Float32, is_odd).wait();
     }},
    {"another root of a gather", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       Floats own{}, all{};
       strict.gather(own.data(), all.data(), each(strict, 2), DType::Float32, is_odd).wait();
     }},
    {"collectives in another order", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       for (const bool is_sum : {!is_odd, is_odd})
         strict
             .all_reduce(data.data(), kCount, DType::Float32,
                         is_sum ? ReduceOp::Sum : ReduceOp::Min)
             .wait();
     }},
    {"a barrier in place of another call", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       float value = 0;
       if (is_odd)
         strict.barrier();
       else
         strict.all_reduce(&value, 1, DType::Float32, ReduceOp::Sum).wait();
     }},
    {"gathered pieces of other sizes, equal in sum", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       Floats own{}, all{};
       Counts counts = each(strict, 2);
       if (is_odd) std::swap(++counts[0], --counts[1]);
       strict.all_gather(own.data(), all.data(), counts, DType::Float32).wait();
     }},
    {"scattered pieces of other sizes, equal in sum", "call different collectives", true,
     [](Collectives& strict, bool is_odd) {
       Floats all{}, own{};
       Counts counts = each(strict, 2);
       if (is_odd) std::swap(++counts[0], --counts[1]);
       strict.reduce_scatter(all.data(), own.data(), counts, DType::Float32).wait();
     }},
    {"pairs that differ in an all-to-all", "rank 1 sends 2 elements to rank 0, which expects 1",
     true,
     [](Collectives& strict, bool is_odd) {
       Floats from{}, to{};
       Counts sends = each(strict, 1);
       if (is_odd) sends[0] = 2;
       strict.all_to_all(from.data(), sends, to.data(), each(strict, 1), DType::Float32).wait();
     }},
    {"counts of too few ranks", "1 counts for the", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{};
       strict.all_gather(own.data(), all.data(), {1}, DType::Float32).wait();
     }},
    {"a negative count", "a count of -1 elements", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{};
       strict.all_gather(own.data(), all.data(), each(strict, -1), DType::Float32).wait();
     }},
    {"a root that is no rank", "rank 9 is not one of the", true,
     [](Collectives& strict, bool) {
       Floats data{};
       strict.broadcast(data.data(), kCount, DType::Float32, 9).wait();
     }},
    {"a destination that is no rank", "rank 9 is not one of the", true,
     [](Collectives& strict, bool) {
       Floats data{};
       strict.send(data.data(), kCount, DType::Float32, 9).wait();
     }},
    {"buffers of a call that overlap", "overlap", true,
     [](Collectives& strict, bool) {
       Floats data{};
       strict.reduce_scatter(data.data(), data.data() + 1, each(strict, 1), DType::Float32).wait();
     }},
    {"two calls that receive into the same memory", "uses memory of call 1, all_gather", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{};
       Pending first = strict.all_gather(own.data(), all.data(), each(strict, 1), DType::Float32);
       call_during(first, [&] {
         strict.all_gather(own.data(), all.data() + 1, each(strict, 1), DType::Float32).wait();
       });
     }},
    {"a call that sends what another still receives", "uses memory of call 1, all_gather", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{}, sum{};
       Pending first = strict.all_gather(own.data(), all.data(), each(strict, 1), DType::Float32);
       call_during(first, [&] {
         strict.reduce_scatter(all.data(), sum.data(), each(strict, 1), DType::Float32).wait();
       });
     }},
    {"a sent buffer that changes early", "sends was changed before it was waited for", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{};
       Pending gathering =
           strict.all_gather(own.data(), all.data(), each(strict, 1), DType::Float32);
       own[0] = 1;
       gathering.wait();
     }},
    {"a received buffer that changes early", "receives was changed before it was waited for", true,
     [](Collectives& strict, bool) {
       Floats own{}, all{};
       Pending gathering =
           strict.all_gather(own.data(), all.data(), each(strict, 1), DType::Float32);
       all[0] = 1;
       gathering.wait();
     }},
    {"a call that nobody waits for", "was dropped without being waited for", true,
     [](Collectives& strict, bool) {
       Floats data{};
       { Pending dropped = strict.all_reduce(data.data(), 1, DType::Float32, ReduceOp::Sum); }
       strict.barrier();
     }},
    {"a message that nobody waits for", "a message of 8 float32 between rank", false,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       if (is_odd) strict.recv(data.data(), kCount, DType::Float32, 0).wait();
       if (strict.rank() != 0) return;
       { Pending dropped = strict.send(data.data(), kCount, DType::Float32, 1); }
       strict.send(data.data(), 0, DType::Float32, 0).wait();
     }},
    {"a message of another count", "expects call 0, message(9 float32)", false,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       if (strict.rank() == 0) strict.send(data.data(), kCount, DType::Float32, 1).wait();
       if (is_odd) strict.recv(data.data(), kCount + 1, DType::Float32, 0).wait();
     }},
    {"a message of another type", "expects call 0, message(8 int32)", false,
     [](Collectives& strict, bool is_odd) {
       Floats data{};
       if (strict.rank() == 0) strict.send(data.data(), kCount, DType::Float32, 1).wait();
       if (is_odd) strict.recv(data.data(), kCount, DType::Int32, 0).wait();
     }},
    {"messages in another order", "sends call 0, message(8 float32)", false,
     [](Collectives& strict, bool is_odd) {
       Floats first{}, second{};
       if (strict.rank() == 0) {
         Pending one = strict.send(first.data(), kCount, DType::Float32, 1);
         Pending two = strict.send(second.data(), kCount, DType::Int32, 1);
         one.wait();
         two.wait();
       }
       if (!is_odd) return;
       Pending two = strict.recv(second.data(), kCount, DType::Int32, 0);
       Pending one = strict.recv(first.data(), kCount, DType::Float32, 0);
       EXPECT_THROW(one.wait(), CommError);
       two.wait();
     }},
};

TEST_F(StrictTest, FindsEveryPlantedError) {
  EXPECT_GE(std::size(kPlantedErrors), 20u);
  for (const PlantedError& error : kPlantedErrors) {
    SCOPED_TRACE(error.name);
    const auto strict = make_strict_collectives(testing::world().communicator());

    const std::string fault = fault_of([&] { error.plant(*strict, rank() == 1); });

    int32_t found = fault.find(error.says) != std::string::npos;
    const std::string said = found ? "" : fault;
    EXPECT_TRUE(found || !error.is_everywhere) << said;
    const auto ranks = make_mpi_collectives(testing::world().communicator());
    ranks->all_reduce(&found, 1, DType::Int32, ReduceOp::Max).wait();
    EXPECT_TRUE(found) << said;
  }
}

}  // namespace
}  // namespace zea::test_strict_collectives
