// SPDX-License-Identifier: Apache-2.0
// zea --check-node's all-reduces between the memory of devices: their sums and rates, and one that
// is wrong.
#include <gtest/gtest.h>

#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "preflight/health_check.hpp"
#include "preflight/measure_nodes.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_node_links {
namespace {

constexpr int64_t kBytes = int64_t{1} << 20;

/// Sums with a wrong element on the last rank.
class WrongSums : public WrappedCollectives {
 public:
  explicit WrongSums(std::unique_ptr<Collectives> right)
      : WrappedCollectives(*right), right_(std::move(right)) {}

  Pending start(const CollectiveCall& call) override {
    Pending pending = inner_.start(call);
    if (call.kind != CallKind::AllReduce || rank() != size() - 1) return pending;
    pending.wait();
    at::for_blob(call.receive, {call.count})
        .options(at::TensorOptions(stand_in_device()).dtype(at::kFloat))
        .target_device(stand_in_device())
        .make_tensor()[call.count / 2]
        .add_(1);
    return {};
  }

 private:
  std::unique_ptr<Collectives> right_;
};

Measurements measured_with(const MakeCollectives& make) {
  ActionRecord record;
  const std::unique_ptr<Collectives> control = make_mpi_collectives(world().communicator());
  Measurements measured{.links_on_gpus = true};
  for (int rank = 0; rank < world().size(); ++rank) {
    RankFacts facts;
    facts.node = world().node_of_rank()[rank];
    facts.name = "here";
    measured.ranks.push_back(facts);
  }
  measured.nodes = {0};
  measured.clocks = {{}};
  measure_links(world(), *control, {stand_in_device(), make, kBytes}, record, measured);
  return measured;
}

TEST(NodeLinks, RightSumsHaveARate) {
  const Measurements measured = measured_with(make_stand_in_collectives);
  ASSERT_EQ(measured.inside.size(), 1);
  EXPECT_TRUE(measured.inside[0].is_right);
  EXPECT_GT(measured.inside[0].rate, 0);
  EXPECT_TRUE(measured.everyone.is_right);
  EXPECT_FALSE(has_sick(check_health(measured)));
  EXPECT_TRUE(device().take_faults().empty());
}

TEST(NodeLinks, AWrongSumIsNamed) {
  const Measurements measured = measured_with([](const Communicator& ranks) {
    return std::make_unique<WrongSums>(make_stand_in_collectives(ranks));
  });
  EXPECT_FALSE(measured.inside.at(0).is_right);
  const std::string said = report(measured, check_health(measured));
  EXPECT_NE(said.find("sick: node here: an all-reduce among its ranks gave a wrong sum"),
            std::string::npos)
      << said;
}

}  // namespace
}  // namespace zea::testing::test_node_links
