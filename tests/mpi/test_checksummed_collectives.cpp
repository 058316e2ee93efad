// SPDX-License-Identifier: Apache-2.0
// The receiver finds a bit that flips between two ranks, in every kind of call. test_collectives
// checks that calls without faults give the right results.
#include "comm/checksummed_collectives.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "core/error.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_checksummed_collectives {
namespace {

constexpr int64_t kCount = 37;

/// Flips a bit of the first element that a call of floats brings from rank 0.
class FlippingCollectives : public WrappedCollectives {
 public:
  FlippingCollectives(Collectives& real, bool flips) : WrappedCollectives(real), flips_(flips) {}

  Pending start(const CollectiveCall& call) override {
    void* received = call.receive;
    bool is_float = call.dtype == DType::Float32;
    for (const Message& message : call.receives)
      if (message.dtype == DType::Float32) received = message.data, is_float = true;
    Pending pending = inner_.start(call);
    if (!flips_ || !is_float || received == nullptr) return pending;
    pending.wait();
    *static_cast<uint32_t*>(received) ^= 1u << 3;
    return {};
  }

 private:
  bool flips_;
};

struct Case {
  const char* name;
  std::function<Pending(Collectives& all, std::vector<float>& own, std::vector<float>& received)>
      start;
};

int last(const Collectives& all) {
  return all.size() - 1;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"all_reduce",
       [](auto& ranks, auto& own, auto&) {
         return ranks.all_reduce(own.data(), kCount, DType::Float32, ReduceOp::Sum);
       }},
      {"all_gather",
       [](auto& ranks, auto& own, auto& received) {
         return ranks.all_gather(own.data(), received.data(), Counts(ranks.size(), kCount),
                                 DType::Float32);
       }},
      {"reduce_scatter",
       [](auto& ranks, auto& own, auto& received) {
         return ranks.reduce_scatter(own.data(), received.data(), Counts(ranks.size(), kCount),
                                     DType::Float32);
       }},
      {"all_to_all",
       [](auto& ranks, auto& own, auto& received) {
         const Counts counts(ranks.size(), kCount);
         return ranks.all_to_all(own.data(), counts, received.data(), counts, DType::Float32);
       }},
      {"broadcast", [](auto& ranks, auto& own,
                       auto&) { return ranks.broadcast(own.data(), kCount, DType::Float32, 0); }},
      {"gather",
       [](auto& ranks, auto& own, auto& received) {
         return ranks.gather(own.data(), received.data(), Counts(ranks.size(), kCount),
                             DType::Float32, last(ranks));
       }},
      {"send",
       [](auto& ranks, auto& own, auto& received) {
         if (ranks.rank() == 0) return ranks.send(own.data(), kCount, DType::Float32, last(ranks));
         if (ranks.rank() == last(ranks))
           return ranks.recv(received.data(), kCount, DType::Float32, 0);
         return Pending();
       }},
      {"exchange",
       [](auto& ranks, auto& own, auto& received) {
         const Message out{own.data(), kCount, DType::Float32, last(ranks)};
         const Message in{received.data(), kCount, DType::Float32, 0};
         if (ranks.rank() == 0) return ranks.exchange({out}, {});
         if (ranks.rank() == last(ranks)) return ranks.exchange({}, {in});
         return Pending();
       }},
  };
  return all;
}

/// Returns the message of the exception that a call throws on this rank; empty: none. If `flips`,
/// the last rank receives a flipped bit.
std::string fault_of(const Case& call, bool flips) {
  const Communicator& communicator = testing::world().communicator();
  const auto real = make_host_collectives(communicator);
  FlippingCollectives flipping(*real, flips && communicator.rank() == communicator.size() - 1);
  std::vector<int> world_ranks(communicator.size());
  std::iota(world_ranks.begin(), world_ranks.end(), 10);
  const auto checked = make_checksummed_collectives(flipping, "llm.tp", world_ranks);
  std::vector<float> own(static_cast<size_t>(kCount * communicator.size()), 1.5f);
  std::vector<float> received(own.size());
  try {
    call.start(*checked, own, received).wait();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::SickNode);
    return error.what();
  }
  return "";
}

TEST(ChecksummedCollectives, FindAFlippedBit) {
  const int size = testing::world().communicator().size();
  for (const Case& call : cases()) {
    SCOPED_TRACE(call.name);
    const std::string fault = fault_of(call, true);
    if (testing::world().rank() != size - 1) {
      EXPECT_EQ(fault, "");
      continue;
    }
    const std::string name = std::string(call.name) == "send" ? "recv" : call.name;
    EXPECT_TRUE(fault.starts_with(name + " of llm.tp: rank " + std::to_string(9 + size) +
                                  " received other bits than rank 10 sent"))
        << fault;
  }
}

TEST(ChecksummedCollectives, AcceptWhatArrivesAsItWasSent) {
  for (const Case& call : cases()) EXPECT_EQ(fault_of(call, false), "") << call.name;
}

}  // namespace
}  // namespace zea::test_checksummed_collectives
