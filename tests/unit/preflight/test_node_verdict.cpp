// SPDX-License-Identifier: Apache-2.0
// Which nodes are called sick, of measurements that are made up.
#include "preflight/verdict.hpp"

#include <gtest/gtest.h>

#include "preflight/node_views.hpp"
#include "preflight/rank_facts.hpp"

namespace zea::test_node_verdict {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

RankFacts healthy_rank(int rank, int node) {
  RankFacts facts;
  facts.node = node;
  facts.name = "n" + std::to_string(node / 2 + 1);
  facts.zea = "0.1.0";
  facts.build = "aaaa";
  facts.libtorch = "2.11";
  facts.mpi = "Open MPI";
  facts.kernel = "6.1";
  facts.processor = "EPYC";
  facts.cores = {rank % 2};
  facts.open_files = 20000;
  facts.memory_free_bytes = 100 * kGib;
  facts.memory_bytes = 125 * kGib;
  facts.shared_bytes = facts.shared_free_bytes = 50 * kGib;
  facts.disk_free_bytes = 500 * kGib;
  facts.disk_rate = rank == node ? 1e9 : 0;
  return facts;
}

/// Of two ranks each, in a ring.
Measurements healthy(int nodes = 4) {
  Measurements measured{.directory = "runs/a"};
  for (int node = 0; node < nodes; ++node) {
    measured.nodes.push_back(2 * node);
    for (int rank = 2 * node; rank < 2 * node + 2; ++rank)
      measured.ranks.push_back(healthy_rank(rank, 2 * node));
    measured.clocks.push_back({1e-4, 1e-4});
    measured.inside.push_back({{node}, 20e9});
    measured.everyone.nodes.push_back(node);
  }
  for (const auto& round : pair_rounds(nodes))
    for (const auto& [one, other] : round) measured.pairs.push_back({{one, other}, 10e9});
  measured.everyone.rate = 9e9;
  return measured;
}

Measurements on_gpus() {
  Measurements measured = healthy();
  measured.on_gpus = measured.links_on_gpus = true;
  for (size_t rank = 0; rank < measured.ranks.size(); ++rank) {
    RankFacts& facts = measured.ranks[rank];
    facts.gpu_id = std::to_string(rank % 2);
    facts.gpu_name = "H100";
    facts.visible_gpus = 2;
    facts.gpu_bytes = 80 * kGib;
    facts.gpu_free_bytes = 79 * kGib;
    facts.gpu_link = {32, 32, 16, 16};
    facts.nccl = facts.built_nccl = 22702;
    facts.cuda_runtime = facts.built_cuda = facts.cuda_driver = 13000;
  }
  return measured;
}

/// The sentences of the report, without table and totals.
std::string sentences(const Measurements& measured) {
  const std::string text = report(measured, judge(measured));
  const size_t begin = text.find("expected: ");
  return text.substr(text.find('\n', begin) + 1);
}

void expect_sick(const Measurements& measured, const std::string& sentence) {
  EXPECT_TRUE(has_sick(judge(measured)));
  EXPECT_EQ(sentences(measured), sentence + "\n");
}

void expect_note(const Measurements& measured, const std::string& sentence) {
  EXPECT_FALSE(has_sick(judge(measured)));
  EXPECT_EQ(sentences(measured), sentence + "\nno node is sick\n");
}

TEST(NodeVerdict, HealthyNodesAreNot) {
  for (const int nodes : {1, 2, 3, 4}) EXPECT_EQ(sentences(healthy(nodes)), "no node is sick\n");
  EXPECT_EQ(sentences(on_gpus()), "no node is sick\n");
}

TEST(NodeVerdict, SlowLinksInsideANode) {
  Measurements measured = healthy();
  measured.inside[2].rate = 9e9;
  expect_sick(measured,
              "sick: node n3: its ranks sum at 9.00 GB/s, and the median of the nodes is 20.00 "
              "GB/s; ask the administrators to look at what else runs on it, and its memory, or "
              "exclude it with --exclude=n3");
  measured.inside[2].rate = 10e9;
  EXPECT_FALSE(has_sick(judge(measured)));
}

TEST(NodeVerdict, OfTwoNodesTheSlowerOneIsOnlyTold) {
  Measurements measured = healthy(2);
  measured.inside[0].rate = 1e9;
  expect_note(measured,
              "note: node n1: its ranks sum at 1.00 GB/s, and the median of the nodes is 10.50 "
              "GB/s; ask the administrators to look at what else runs on it, and its memory");
}

TEST(NodeVerdict, ASlowNetworkIsOfTheNodeThatIsSlowWithBothNeighbours) {
  Measurements measured = healthy(5);
  for (LinkRate& pair : measured.pairs)
    if (pair.nodes[0] == 1 || pair.nodes[1] == 1) pair.rate = 1e9;
  expect_sick(measured,
              "sick: node n2: with the better of its neighbours it sums at 1.00 GB/s, and the "
              "median of the nodes is 10.00 GB/s; ask the administrators to look at its network "
              "(ibstat, ethtool), or exclude it with --exclude=n2");
}

TEST(NodeVerdict, WrongSumsAreOfTheSmallestGroup) {
  Measurements measured = healthy();
  measured.everyone.is_right = false;
  EXPECT_NE(sentences(measured).find("sick: an all-reduce of all ranks gave a wrong sum"),
            std::string::npos);
  for (LinkRate& pair : measured.pairs) pair.is_right = pair.nodes[0] != 3 && pair.nodes[1] != 3;
  EXPECT_NE(sentences(measured).find("node n4: every all-reduce with a neighbour gave a wrong sum"),
            std::string::npos);
  measured.inside[3].is_right = false;
  expect_sick(measured,
              "sick: node n4: an all-reduce among its ranks gave a wrong sum; ask the "
              "administrators to test its memory, GPUs and network, or exclude it with "
              "--exclude=n4");
}

TEST(NodeVerdict, AClockIsSkewedBeyondWhatIsKnownOfIt) {
  Measurements measured = healthy();
  measured.clocks[1] = {-3, 2.5};
  EXPECT_FALSE(has_sick(judge(measured)));
  measured.clocks[1] = {-3, 0.25};
  expect_sick(measured,
              "sick: node n2: its clock is 3.00 s behind that of node n1 (known to 0.25 s); ask "
              "the administrators to look at its time service (chronyc tracking), or exclude it "
              "with --exclude=n2");
}

/// Others are known beside the first node, whose own may be the one.
TEST(NodeVerdict, TheClockOfTheFirstNode) {
  Measurements measured = healthy();
  for (size_t node = 1; node < measured.clocks.size(); ++node) measured.clocks[node] = {-5, 0.125};
  ASSERT_EQ(measured.clocks.size(), 4);
  const std::vector<Finding> findings = judge(measured);
  ASSERT_EQ(findings.size(), 1) << sentences(measured);
  EXPECT_EQ(findings[0].nodes, std::vector<std::string>{"n1"});
  EXPECT_NE(findings[0].found.find("its clock is 5.00 s ahead of that of node n"),
            std::string::npos);
}

TEST(NodeVerdict, SharedMemoryThatIsFull) {
  Measurements measured = healthy();
  measured.ranks[0].shared_free_bytes = kGib / 32;
  expect_sick(measured,
              "sick: node n1: of the 50.00 GiB of /dev/shm 0.03 GiB are free, and its 2 ranks want "
              "0.06 GiB; remove what earlier jobs left there, or make it larger (containers: "
              "--shm-size), or exclude it with --exclude=n1");
}

TEST(NodeVerdict, TheDiskOfTheRunDirectory) {
  Measurements measured = healthy();
  measured.ranks[6].disk_rate = 200e6;
  EXPECT_NE(sentences(measured).find("node n4: it writes runs/a at 200.00 MB/s, and the median of "
                                     "the nodes is 1.00 GB/s"),
            std::string::npos);
  measured = healthy();
  measured.ranks[2].disk_fault = "mkstemp failed";
  measured.ranks[4].disk_free_bytes = kGib / 2;
  EXPECT_NE(sentences(measured).find("node n2: runs/a cannot be written: mkstemp failed"),
            std::string::npos);
  EXPECT_NE(sentences(measured).find("node n3: 0.50 GiB are free for runs/a"), std::string::npos);
}

TEST(NodeVerdict, MemoryThatSomebodyElseTook) {
  Measurements measured = healthy();
  measured.ranks[4].memory_free_bytes = 40 * kGib;
  expect_sick(
      measured,
      "sick: node n3: of its 125.00 GiB of memory 40.00 GiB are free (32 %), and the median "
      "of the nodes is 80 %; ask the administrators to end what another job left there, or "
      "exclude it with --exclude=n3");
  measured.ranks[4].memory_free_bytes = 50 * kGib;
  EXPECT_FALSE(has_sick(judge(measured)));
}

TEST(NodeVerdict, NodesMayHaveMemoryOfDifferentSizes) {
  Measurements measured = healthy();
  measured.ranks[4].memory_bytes = 30 * kGib;
  measured.ranks[4].memory_free_bytes = 24 * kGib;
  measured.ranks[2].memory_bytes = 124 * kGib;  // of the same size, but for what a kernel keeps
  expect_note(measured,
              "note: node n3: its memory is 30.00 GiB, and the median of the nodes is 124.50 GiB; "
              "ask for nodes of one kind (--constraint, --mem) if one has too little");
  measured.ranks[4].memory_free_bytes = 10 * kGib;
  EXPECT_TRUE(has_sick(judge(measured)));
  for (RankFacts& rank : measured.ranks) rank.memory_bytes = -1;  // the system does not tell
  EXPECT_EQ(sentences(measured), "no node is sick\n");
}

TEST(NodeVerdict, AGpuThatIsMissing) {
  Measurements measured = on_gpus();
  measured.ranks[2].visible_gpus = measured.ranks[3].visible_gpus = 1;
  measured.ranks[3].gpu_fault = "2 ranks on this node, but it shows 1 GPUs";
  const std::string said = sentences(measured);
  EXPECT_NE(said.find("sick: node n2: 2 ranks on this node, but it shows 1 GPUs; ask"),
            std::string::npos);
  EXPECT_NE(said.find("node n2: it shows a rank 1 GPUs, the median of the nodes 2"),
            std::string::npos);
}

TEST(NodeVerdict, AnOldDriverIsTheReasonOfAllElse) {
  Measurements measured = on_gpus();
  for (const size_t rank : {0, 1}) {
    measured.ranks[rank].cuda_driver = 12040;
    measured.ranks[rank].gpu_fault = "no GPU";
  }
  const std::string said = sentences(measured);
  EXPECT_NE(said.find("node n1: its driver knows CUDA 12.4, and the CUDA runtime that is loaded is "
                      "13.0"),
            std::string::npos);
  EXPECT_EQ(said.find("no GPU"), std::string::npos);
}

TEST(NodeVerdict, AGpuThatAnotherJobHolds) {
  Measurements measured = on_gpus();
  measured.ranks[7].gpu_free_bytes = 20 * kGib;
  EXPECT_NE(sentences(measured).find("node n4: of the 80.00 GiB of GPU 1 20.00 GiB are free"),
            std::string::npos);
  for (RankFacts& rank : measured.ranks) {  // small ones, of which desktops take some
    rank.gpu_bytes = 8 * kGib;
    rank.gpu_free_bytes = 6 * kGib;
  }
  EXPECT_EQ(sentences(measured).find("are free"), std::string::npos);
}

TEST(NodeVerdict, LinksBetweenGpusAreMeasuredWhereAllHaveRoom) {
  Measurements measured = on_gpus();
  EXPECT_TRUE(can_sum_on_gpus(measured.ranks));
  measured.ranks[3].gpu_free_bytes = kGib;
  EXPECT_FALSE(can_sum_on_gpus(measured.ranks)) << "another job holds the rest";
  measured.ranks[3].gpu_free_bytes = 70 * kGib;
  EXPECT_TRUE(can_sum_on_gpus(measured.ranks));
  measured.ranks[3].gpu_bytes = 4 * kGib;
  measured.ranks[3].gpu_free_bytes = kGib;
  EXPECT_FALSE(can_sum_on_gpus(measured.ranks)) << "it is too small";
  measured = on_gpus();
  measured.ranks[7].gpu_fault = "no GPU";
  EXPECT_FALSE(can_sum_on_gpus(measured.ranks));
}

/// Also on a node that is alone.
TEST(NodeVerdict, AGpuWhoseLinkIsBelowWhatItCanBe) {
  Measurements measured = on_gpus();
  measured.ranks[7].gpu_link = {32, 32, 8, 16};
  expect_sick(measured,
              "sick: node n4: the PCIe link of GPU 1 runs at 32.00 GT/s x 8, and it can run at "
              "32.00 GT/s x 16; ask the administrators to look at its slot (nvidia-smi -q -d "
              "PERFORMANCE, lspci -vv), or exclude it with --exclude=n4");
  measured.ranks[7].gpu_link = {32, 32, 12, 16};
  expect_note(measured,
              "note: node n4: the PCIe link of GPU 1 runs at 32.00 GT/s x 12, and it can run at "
              "32.00 GT/s x 16; ask the administrators to look at its slot (nvidia-smi -q -d "
              "PERFORMANCE, lspci -vv)");
  measured.ranks[7].gpu_link = {};
  EXPECT_EQ(sentences(measured), "no node is sick\n");
}

TEST(NodeVerdict, AnotherBuildIsSickAndAnotherKernelIsTold) {
  Measurements measured = healthy();
  measured.ranks[2].build = "bbbb";
  expect_sick(
      measured,
      "sick: node n2: zea is 0.1.0 (build bbbb), on node n1 and most others it is 0.1.0 (build "
      "aaaa); start the same program on all nodes (is its folder the same there?), or "
      "exclude it with --exclude=n2");
  measured = healthy();
  measured.ranks[4].kernel = measured.ranks[6].kernel = "5.15";
  measured.ranks[2].kernel = "6.2";
  EXPECT_FALSE(has_sick(judge(measured)));
}

TEST(NodeVerdict, CoresThatRanksShare) {
  Measurements measured = healthy();
  measured.ranks[0].cores = measured.ranks[1].cores = {0, 1};
  EXPECT_EQ(sentences(measured), "no node is sick\n");
  measured.ranks[1].cores = {1};
  expect_note(measured,
              "note: node n1: ranks are bound to different sets of cores that have some in common; "
              "bind them otherwise (--cpu-bind, --bind-to)");
  measured.ranks[0].cores = {1};
  expect_note(
      measured,
      "note: node n1: ranks with 2 threads share 1 cores (the first is core 1); start fewer "
      "ranks, set run.threads lower, or bind them otherwise (--cpu-bind, --bind-to)");
}

TEST(NodeVerdict, LimitsAreToldOnceForAllNodes) {
  Measurements measured = healthy(2);
  for (RankFacts& facts : measured.ranks) facts.open_files = 256;
  expect_note(measured, "note: nodes n1, n2: a process may open 256 files; raise ulimit -n");
}

TEST(NodeVerdict, ReportsALinePerNode) {
  const std::string text = report(on_gpus(), {});
  EXPECT_EQ(
      text.substr(0, text.find("\nn2")),
      "node  ranks  cores  GPUs      memory free  /dev/shm free  disk free   disk write  sum "
      "inside  sum across  clock\n"
      "n1    2      2      2 x H100  100.00 GiB   50.00 GiB      500.00 GiB  1.00 GB/s   20.00 "
      "GB/s  10.00 GB/s  0.10 +- 0.10 ms");
  EXPECT_NE(text.find("all 8 ranks: an all-reduce is right, at 9.00 GB/s between GPUs\n"
                      "expected: inside 20.00 GB/s (the median of the nodes), at least half of it; "
                      "across 10.00 GB/s"),
            std::string::npos);
}

TEST(NodeVerdict, APairOfARoundSharesNoNode) {
  EXPECT_TRUE(pair_rounds(1).empty());
  EXPECT_EQ(pair_rounds(2).size(), 1U);
  for (const int nodes : {3, 4, 5, 8, 9}) {
    std::vector<int> pairs_of(nodes);
    for (const auto& round : pair_rounds(nodes)) {
      std::vector<int> in_round(nodes);
      for (const auto& [one, other] : round)
        for (const int node : {one, other}) {
          EXPECT_EQ(++in_round[node], 1);
          ++pairs_of[node];
        }
    }
    EXPECT_EQ(pairs_of, std::vector<int>(nodes, 2));
  }
}

TEST(NodeVerdict, FactsTravelAsText) {
  RankFacts facts = healthy_rank(3, 2);
  facts.processor = "not UTF-8: \xff";
  facts.gpu_fault = "none\nat all";
  const RankFacts read = facts_of_text(text_of(facts));
  EXPECT_EQ(read.processor, "not UTF-8: \xef\xbf\xbd");
  EXPECT_EQ(read.gpu_fault, facts.gpu_fault);
  EXPECT_EQ(read.cores, facts.cores);
  EXPECT_EQ(read.memory_free_bytes, facts.memory_free_bytes);
  EXPECT_EQ(read.memory_bytes, facts.memory_bytes);
}

TEST(NodeVerdict, ThisMachineTellsItsFacts) {
  RankFacts facts = facts_of_host(1, "0.1.0");
  EXPECT_FALSE(facts.name.empty());
  EXPECT_EQ(facts.build.size(), 8U);
  EXPECT_NE(facts.libtorch, "unknown");
  EXPECT_FALSE(facts.cores.empty());
  EXPECT_GT(facts.memory_free_bytes, 0);
  EXPECT_GE(facts.memory_bytes, facts.memory_free_bytes);
  measure_disk("a_folder/that/is/not/there", facts);
  EXPECT_EQ(facts.disk_fault, "");
  EXPECT_GT(facts.disk_rate, 0);
  facts.disk_rate = 0;
  measure_disk("/proc", facts);
  EXPECT_NE(facts.disk_fault, "");
}

}  // namespace
}  // namespace zea::test_node_verdict
