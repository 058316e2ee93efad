// SPDX-License-Identifier: Apache-2.0
// What full_shard promises of memory, by the ledger of the buffers: a rank holds its share of
// everything that is owned, and two units' worth of what is gathered and of what is not yet
// reduced.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing {
namespace {

/// Wide enough that alignment and padding do not count.
std::string wide_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 3}));
  config["text_config"]["hidden_size"] = 96;
  config["text_config"]["intermediate_size"] = 256;
  config["text_config"]["head_dim"] = 24;
  config["vision_config"]["hidden_size"] = 64;
  config["vision_config"]["intermediate_size"] = 192;
  return config.dump();
}

/// Sum of the two largest units, in bytes of `element_bytes` per element.
int64_t two_largest_units(const Plan& plan, int64_t element_bytes) {
  std::vector<int64_t> units(plan.model.units.size(), 0);
  for (const FlatGroup& group : plan.groups)
    for (int unit : group.units) units[unit] += group.elements * element_bytes;
  std::sort(units.rbegin(), units.rend());
  return units[0] + units[1];
}

TEST(Memory, FullShardHoldsItsShareAndTwoUnits) {
  const Communicator world = testing::world().communicator();
  ASSERT_EQ(world.size(), 4);
  for (const char* preset : {"fp32", "bf16"}) {
    TinyRunOptions run;
    run.config_json = wide_config();
    run.steps = 2;
    run.deck.precision.preset = preset;
    run.deck.data.row_tokens = 48;
    run.deck.schedule = {.steps = 2, .global_batch = 9};
    const Plan plan = make_plan(run.deck, run.config_json, 4);
    const MemoryDataset dataset = make_tiny_dataset(plan.model, 12, {1, 0, 2}, 3);
    const TinyResult got = run_tiny(world, make_mpi_collectives, dataset, run);

    const int64_t param = static_cast<int64_t>(element_bytes(plan.precision.param));
    const int64_t master = static_cast<int64_t>(element_bytes(plan.precision.master));
    const int64_t parameters = plan.model.num_parameters();
    // Masters, two moments and the gradient, each a quarter; and the parameters where they are of
    // another type.
    const int64_t copies = (param == master ? 0 : param) + 4 * master;
    const int64_t owned = parameters * copies / 4;
    const int64_t bound = owned + two_largest_units(plan, param) + two_largest_units(plan, master);
    EXPECT_LE(got.peak_bytes, bound) << preset;
    EXPECT_GE(got.peak_bytes, parameters * 3 * master / 4) << preset << ": the ledger must count";
  }
}

}  // namespace
}  // namespace zea::testing
