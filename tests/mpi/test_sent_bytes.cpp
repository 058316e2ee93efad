// SPDX-License-Identifier: Apache-2.0
// The bytes that a mesh counts are those that MPI is given to send: its calls are watched from
// outside, so that the formulas of the counters are not compared with themselves. For messages
// every byte counts. For sums of a few numbers and for broadcasts, which are left to MPI, the
// number of elements counts: MPI decides what it sends. In shared memory nothing is sent.
#include <gtest/gtest.h>

#include <numeric>

#include "support/axis_layouts.hpp"
#include "support/given_to_mpi.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_sent_bytes {
namespace {

int64_t total(const Traffic& traffic) {
  return std::accumulate(traffic.begin(), traffic.end(), int64_t{0},
                         [](int64_t sum, const auto& group) { return sum + group.second; });
}

/// Runs two steps on all ranks of `ranks`: the counted bytes are those given to MPI.
void expect_counted_is_given(const Communicator& ranks, const TinyRunOptions& options) {
  const MemoryDataset dataset = axis_dataset();
  TinyRun run(ranks, make_watched_collectives, dataset, options);
  for (int step = 0; step < 2; ++step) {
    const Traffic before = run.engine().mesh().traffic();
    const GivenToMpi given_before = given_to_mpi();
    TinyResult result;
    run.train(1, result);
    const GivenToMpi given = given_to_mpi();
    const int64_t messages = given.message_bytes - given_before.message_bytes;
    const int64_t trees = given.tree_bytes - given_before.tree_bytes;
    EXPECT_EQ(total(run.engine().mesh().traffic()) - total(before), messages + trees);
    EXPECT_GT(messages, 0);
  }
}

TEST(SentBytes, AreThoseThatMpiIsGiven) {
  const Communicator ranks = first_ranks(kAxisRanks);
  for (const char* preset : {"fp32", "bf16"})
    for (const AxisLayout& layout : kAxisLayouts) {
      SCOPED_TRACE(std::string(layout.name) + ", " + preset);
      expect_counted_is_given(ranks, run_on(layout, preset));
    }
}

TEST(SentBytes, OfBuffersThatRanksDoNotDivide) {
  const Communicator ranks = first_ranks(3);
  if (ranks.size() == 0) return;
  TinyRunOptions run = run_on({"DDP"}, "fp64");
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = "no_shard";
  expect_counted_is_given(ranks, run);
}

TEST(SentBytes, OfReplicasThatSumInBf16) {
  const Communicator ranks = first_ranks(kAxisRanks);
  TinyRunOptions run = run_on({"HSDP"}, "bf16");
  run.deck.mesh.dp_replicate = 2;
  run.deck.precisions["llm"].reduce_dtype = "bf16";
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = "hybrid_shard";
  expect_counted_is_given(ranks, run);
}

}  // namespace
}  // namespace zea::testing::test_sent_bytes
