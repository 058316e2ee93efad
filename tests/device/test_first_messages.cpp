// SPDX-License-Identifier: Apache-2.0
// At the first message of a pair NCCL's host waits for the peer. Two encoder ranks and two ranks of
// a language model exchange theirs in an order that the data decides, here in a circle: a mesh
// connects the ranks of its links before. Communicators are given up together.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "comm/mesh.hpp"
#include "core/error.hpp"
#include "device/device.hpp"
#include "device/meeting.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_first_messages {
namespace {

void* compute_stream() {
  return nullptr;
}

std::unique_ptr<Collectives> make_device_collectives(const Communicator& communicator) {
  return make_nccl_collectives(communicator, compute_stream);
}

class Unconnected : public WrappedCollectives {
 public:
  explicit Unconnected(std::unique_ptr<Collectives> real)
      : WrappedCollectives(*real), real_(std::move(real)) {}
  void connect(const std::vector<int>&, const std::vector<int>&) override {}
  Pending start(const CollectiveCall& call) override { return inner_.start(call); }

 private:
  std::unique_ptr<Collectives> real_;
};

MeshShape encoders_beside_the_model() {
  MeshShape shape;
  shape.modules = {{.module = "vision", .first_rank = 0, .encoder_dp = 2},
                   {.module = "llm", .first_rank = 2, .tp = 2}};
  shape.links = {{"vision.pp0>llm.pp0", {0, 2}, {2, 2}, true}};
  return shape;
}

/// 1F1B of two microbatches: the first one's images are one for each rank of the language model,
/// those of the second go crosswise, and gradients of the first come before they do.
struct Step {
  bool is_output;
  int peer;
};
const std::vector<Step> kStepsOfRank[] = {{{true, 2}, {true, 3}, {false, 2}},
                                          {{true, 3}, {true, 2}, {false, 3}},
                                          {{true, 0}, {false, 0}, {true, 1}},
                                          {{true, 1}, {false, 1}, {true, 0}}};

void walk(Mesh& mesh, char* memory) {
  const std::string link = mesh.shape().links[0].name;
  std::vector<Pending> pendings;
  for (const auto& [is_output, peer] : kStepsOfRank[mesh.rank()]) {
    const Message message{memory++, 1, DType::UInt8, peer};
    const bool sends = is_output == (mesh.rank() < 2);
    Collectives& way = is_output ? mesh.outputs(link) : mesh.gradients(link);
    pendings.push_back(sends ? way.exchange({message}, {}) : way.exchange({}, {message}));
  }
  for (Pending& pending : pendings) pending.wait();
}

class FirstMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() != 4) GTEST_SKIP() << "needs four ranks";
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory_), 8), cudaSuccess);
  }
  void TearDown() override {
    set_patience(kUsualPatience);
    cudaFree(memory_);
  }

  char* memory_ = nullptr;
};

TEST_F(FirstMessages, OfAMeshFindTheirRanksConnected) {
  Mesh mesh(world().communicator(), encoders_beside_the_model(), make_device_collectives);
  EXPECT_TRUE(mesh.traffic().empty());  // connecting is nobody's sending
  walk(mesh, memory_);
  device().compute().drain();
}

TEST_F(FirstMessages, WouldWaitForEachOtherInACircle) {
  Mesh mesh(world().communicator(), encoders_beside_the_model(), [](const Communicator& ranks) {
    return std::make_unique<Unconnected>(make_device_collectives(ranks));
  });
  set_patience(std::chrono::milliseconds(500));
  EXPECT_THROW(walk(mesh, memory_), CommError);
  std::string found;
  for (const std::string& fault : device().take_faults()) found += fault + "\n";
  EXPECT_TRUE(found.find("waits at its first message") != std::string::npos ||
              found.find("gave the communicator up") != std::string::npos)
      << found;
}

/// The work of a rank in one communicator follows its work in the other, which no peer joins.
TEST_F(FirstMessages, CommunicatorsAreGivenUpTogether) {
  std::vector<std::unique_ptr<Collectives>> both;
  for (int i = 0; i < 2; ++i) both.push_back(make_device_collectives(world().communicator()));
  if (world().rank() == 0)
    for (const int which : {1, 0})
      both[which]->all_reduce(memory_, 1, DType::UInt8, ReduceOp::Sum).wait();
  if (world().rank() == 0) abort_together(both);
  world().communicator().duplicate("met");  // the others hang until then
  const std::vector<std::string> faults = device().take_faults();
  EXPECT_EQ(faults.size(), world().rank() == 0 ? 2 : 0);
  for (const std::string& fault : faults) EXPECT_EQ(fault, "a rank gave the communicator up");
}

}  // namespace
}  // namespace zea::testing::test_first_messages
