// SPDX-License-Identifier: Apache-2.0
// Scenarios whose blocks have gated delta rules.
#include <iterator>

#include "support/grid_scenarios.hpp"
#include "support/made_up_models.hpp"

namespace zea::testing {
namespace {

/// Whether tp and cp ranks can share the key heads of mix_delta_rules().
bool shares_key_heads(const Grid& grid) {
  return 8 % (grid.llm.tp * grid.llm.cp) == 0;
}

bool has_cp(const Grid& grid) {
  return grid.llm.cp > 1;
}

void pass_states(Options& deck) {
  deck.meshes["llm"].cp_scan = CpScan::States;
}

/// Gradients of adapters of these models are large, so that Adam would turn rounding errors into
/// updates.
void damp(Options& deck) {
  deck.optim.eps = 1;
  deck.optim.lr = 1e-3;
}

const GridScenario kScanScenarios[] = {
    {.name = "gated delta rules beside attention",
     .concerns = shares_key_heads,
     .remake = mix_delta_rules},
    {"gated delta rules by key head, several microbatches, every unit recomputed",
     {.kv_heads = 1},
     {1, 0, 2},
     [](Options& deck) {
       deck.model.activation_checkpointing = AutoOption::of_count(1);
       deck.data.row_tokens = 24;
       if (deck.meshes["llm"].cp > 1) deck.meshes["llm"].cp_scan = CpScan::Ulysses;
     },
     shares_key_heads,
     false,
     6,
     {},
     mix_delta_rules_by_key_head},
    {.name = "gated delta rules that pass states",
     .set = pass_states,
     .concerns = has_cp,
     .remake = mix_delta_rules},
    {"gated delta rules by key head that pass states, frozen, every unit recomputed",
     {.kv_heads = 1},
     {1, 0, 2},
     [](Options& deck) {
       pass_states(deck);
       deck.llm.train = false;
       deck.model.activation_checkpointing = AutoOption::of_count(1);
       deck.data.row_tokens = 24;
     },
     has_cp,
     false,
     6,
     {},
     mix_delta_rules_by_key_head},
    {.name = "adapters of gated delta rules that pass states, everything in one row",
     .set =
         [](Options& deck) {
           pass_states(deck);
           damp(deck);
           deck.data.row_tokens = 400;
         },
     .concerns = has_cp,
     .remake = adapt_delta_rules},
    {.name = "adapters of gated delta rules",
     .set = damp,
     .concerns = shares_key_heads,
     .remake = adapt_delta_rules},
};

}  // namespace

const std::vector<GridScenario>& scan_scenarios() {
  static const std::vector<GridScenario> all(std::begin(kScanScenarios), std::end(kScanScenarios));
  return all;
}

}  // namespace zea::testing
