// SPDX-License-Identifier: Apache-2.0
// The health check of made-up measurements: the sick nodes, and the report.
#include "preflight/health_check.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "preflight/measure_nodes.hpp"

namespace zea::test_health_check {
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

/// Nodes of two ranks each, in a ring.
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
  const std::string text = report(measured, check_health(measured));
  const size_t begin = text.find("expected: ");
  return text.substr(text.find('\n', begin) + 1);
}

using Damage = std::function<void(Measurements&)>;

/// Damaged nodes give exactly this sentence.
struct Case {
  const char* name;
  Measurements measured;
  Damage damage;
  std::string sentence;
};

const char* const kExclude4 = ", or exclude it with --exclude=n4";
const char* const kLookAtSlot =
    "; ask the administrators to look at its slot (nvidia-smi -q -d PERFORMANCE, lspci -vv)";

std::vector<Case> cases() {
  return {
      {"slow inside", healthy(), [](auto& m) { m.inside[3].rate = 9e9; },
       "sick: node n4: its ranks sum at 9.00 GB/s, and the median of the nodes is 20.00 GB/s; ask "
       "the administrators to look at what else runs on it, and its memory" +
           std::string(kExclude4)},
      {"half as fast", healthy(), [](auto& m) { m.inside[3].rate = 10e9; }, ""},
      {"of two nodes", healthy(2), [](auto& m) { m.inside[0].rate = 1e9; },
       "note: node n1: its ranks sum at 1.00 GB/s, and the median of the nodes is 10.50 GB/s; ask "
       "the administrators to look at what else runs on it, and its memory"},
      {"slow with both neighbours", healthy(5),
       [](auto& m) {
         for (LinkRate& pair : m.pairs)
           if (pair.nodes[0] == 3 || pair.nodes[1] == 3) pair.rate = 1e9;
       },
       "sick: node n4: with the better of its neighbours it sums at 1.00 GB/s, and the median of "
       "the nodes is 10.00 GB/s; ask the administrators to look at its network (ibstat, ethtool)" +
           std::string(kExclude4)},
      {"slow disk", healthy(), [](auto& m) { m.ranks[6].disk_rate = 200e6; },
       "sick: node n4: it writes runs/a at 200.00 MB/s, and the median of the nodes is 1.00 GB/s; "
       "ask the administrators to look at its mount" +
           std::string(kExclude4)},
      {"no disk", healthy(), [](auto& m) { m.ranks[6].disk_fault = "mkstemp failed"; },
       "sick: node n4: runs/a cannot be written: mkstemp failed; look at its mount" +
           std::string(kExclude4)},
      {"full disk", healthy(), [](auto& m) { m.ranks[6].disk_free_bytes = kGib / 2; },
       "sick: node n4: 0.50 GiB are free for runs/a, less than 1.00 GiB; make room" +
           std::string(kExclude4)},
      {"clock within its bound", healthy(),
       [](auto& m) {
         m.clocks[3] = {-3, 2.5};
       },
       ""},
      {"clock behind", healthy(),
       [](auto& m) {
         m.clocks[3] = {-3, 0.25};
       },
       "sick: node n4: its clock is 3.00 s behind that of node n1 (known to 0.25 s); ask the "
       "administrators to look at its time service (chronyc tracking)" +
           std::string(kExclude4)},
      {"full /dev/shm", healthy(), [](auto& m) { m.ranks[6].shared_free_bytes = kGib / 32; },
       "sick: node n4: of the 50.00 GiB of /dev/shm 0.03 GiB are free, and its 2 ranks need 0.06 "
       "GiB; remove what earlier jobs left there, or make it larger (containers: --shm-size)" +
           std::string(kExclude4)},
      {"memory of another job", healthy(),
       [](auto& m) { m.ranks[6].memory_free_bytes = 40 * kGib; },
       "sick: node n4: of its 125.00 GiB of memory 40.00 GiB are free (32 %), and the median of "
       "the "
       "nodes is 80 %; ask the administrators to end what another job left there" +
           std::string(kExclude4)},
      {"half of the memory", healthy(), [](auto& m) { m.ranks[6].memory_free_bytes = 50 * kGib; },
       ""},
      {"smaller memory", healthy(),
       [](auto& m) {
         m.ranks[6].memory_bytes = 30 * kGib;
         m.ranks[6].memory_free_bytes = 24 * kGib;
         m.ranks[2].memory_bytes = 124 * kGib;  // the same size, but for what a kernel keeps
       },
       "note: node n4: its memory is 30.00 GiB, and the median of the nodes is 124.50 GiB; ask for "
       "nodes of one kind (--constraint, --mem) if one has too little"},
      {"memory of unknown size", healthy(),
       [](auto& m) {
         for (RankFacts& rank : m.ranks) rank.memory_bytes = -1;
       },
       ""},
      {"GPU without room", on_gpus(), [](auto& m) { m.ranks[7].gpu_free_bytes = 20 * kGib; },
       "sick: node n4: of the 80.00 GiB of GPU 1 20.00 GiB are free; ask the administrators to end "
       "what another job left on it (nvidia-smi)" +
           std::string(kExclude4)},
      {"half of a PCIe link", on_gpus(),
       [](auto& m) {
         m.ranks[7].gpu_link = {32, 32, 8, 16};
       },
       "sick: node n4: the PCIe link of GPU 1 runs at 32.00 GT/s x 8, and it can run at 32.00 GT/s "
       "x 16" +
           std::string(kLookAtSlot) + kExclude4},
      {"most of a PCIe link", on_gpus(),
       [](auto& m) {
         m.ranks[7].gpu_link = {32, 32, 12, 16};
       },
       "note: node n4: the PCIe link of GPU 1 runs at 32.00 GT/s x 12, and it can run at 32.00 "
       "GT/s "
       "x 16" +
           std::string(kLookAtSlot)},
      {"unknown PCIe link", on_gpus(), [](auto& m) { m.ranks[7].gpu_link = {}; }, ""},
      {"another build", healthy(), [](auto& m) { m.ranks[6].build = "bbbb"; },
       "sick: node n4: zea is 0.1.0 (build bbbb), on node n1 and most others it is 0.1.0 (build "
       "aaaa); start the same program on all nodes (is its folder the same there?)" +
           std::string(kExclude4)},
      {"cores for all", healthy(),
       [](auto& m) {
         m.ranks[6].cores = m.ranks[7].cores = {0, 1};
       },
       ""},
      {"sets of cores that overlap", healthy(),
       [](auto& m) {
         m.ranks[6].cores = {0, 1};
       },
       "note: node n4: ranks are bound to different sets of cores that have some in common; bind "
       "them otherwise (--cpu-bind, --bind-to)"},
      {"one core for two", healthy(), [](auto& m) { m.ranks[6].cores = {1}; },
       "note: node n4: ranks with 2 threads share 1 cores (the first is core 1); start fewer "
       "ranks, "
       "set run.threads lower, or bind them otherwise (--cpu-bind, --bind-to)"},
      {"limits of all nodes", healthy(2),
       [](auto& m) {
         for (RankFacts& facts : m.ranks) facts.open_files = 256;
       },
       "note: nodes n1, n2: a process may open 256 files; raise ulimit -n"},
      {"wrong sum inside", healthy(),
       [](auto& m) { m.inside[3].is_right = m.everyone.is_right = false; },
       "sick: node n4: an all-reduce among its ranks gave a wrong sum; ask the administrators to "
       "test its memory, GPUs and network" +
           std::string(kExclude4)},
      {"wrong sums with neighbours", healthy(),
       [](auto& m) {
         m.everyone.is_right = false;
         for (LinkRate& pair : m.pairs) pair.is_right = pair.nodes[0] != 3 && pair.nodes[1] != 3;
       },
       "sick: node n4: every all-reduce with a neighbour gave a wrong sum; ask the administrators "
       "to "
       "test its memory, GPUs and network" +
           std::string(kExclude4)},
  };
}

TEST(HealthCheck, NamesTheDamageAndItsNode) {
  for (Case& one : cases()) {
    SCOPED_TRACE(one.name);
    EXPECT_EQ(sentences(one.measured), "no node is sick\n");
    one.damage(one.measured);
    const bool is_sick = one.sentence.starts_with("sick");
    EXPECT_EQ(has_sick(check_health(one.measured)), is_sick);
    EXPECT_EQ(sentences(one.measured), one.sentence + (one.sentence.empty() ? "" : "\n") +
                                           (is_sick ? "" : "no node is sick\n"));
  }
}

TEST(HealthCheck, OneNodeIsComparedWithNobody) {
  EXPECT_EQ(sentences(healthy(1)), "no node is sick\n");
}

TEST(HealthCheck, AWrongSumOfAllRanksAloneIsOfNoNode) {
  Measurements measured = healthy();
  measured.everyone.is_right = false;
  EXPECT_NE(sentences(measured).find("sick: an all-reduce of all ranks gave a wrong sum"),
            std::string::npos);
}

/// Clocks are measured against that of the first node, which may be the one that is off.
TEST(HealthCheck, TheClockOfTheFirstNode) {
  Measurements measured = healthy();
  for (size_t node = 1; node < measured.clocks.size(); ++node) measured.clocks[node] = {-5, 0.125};
  const std::vector<Finding> findings = check_health(measured);
  ASSERT_EQ(findings.size(), 1) << sentences(measured);
  EXPECT_EQ(findings[0].nodes, std::vector<std::string>{"n1"});
  EXPECT_NE(findings[0].found.find("its clock is 5.00 s ahead of that of node n"),
            std::string::npos);
}

TEST(HealthCheck, AGpuThatIsMissing) {
  Measurements measured = on_gpus();
  measured.ranks[2].visible_gpus = measured.ranks[3].visible_gpus = 1;
  measured.ranks[3].gpu_fault = "2 ranks on this node, but it shows 1 GPUs";
  const std::string said = sentences(measured);
  EXPECT_NE(said.find("sick: node n2: 2 ranks on this node, but it shows 1 GPUs; ask"),
            std::string::npos);
  EXPECT_NE(said.find("node n2: it shows a rank 1 GPUs, the median of the nodes 2"),
            std::string::npos);
}

TEST(HealthCheck, AnOldDriverExplainsAllOtherFaults) {
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

TEST(HealthCheck, LinksBetweenGpusAreMeasuredWhereAllHaveRoom) {
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

TEST(HealthCheck, ReportsALinePerNode) {
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

TEST(HealthCheck, APairOfARoundSharesNoNode) {
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

TEST(HealthCheck, FactsAreReadAsTheyWereWritten) {
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

TEST(HealthCheck, ThisMachineHasFacts) {
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
}  // namespace zea::test_health_check
