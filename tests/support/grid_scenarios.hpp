// SPDX-License-Identifier: Apache-2.0
// Scenarios for the grids: models, data and settings in which something can fail that does not in
// others, each with the grids that it concerns.
#pragma once

#include <string>
#include <vector>

#include "support/grid_table.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing {

struct GridScenario {
  const char* name;
  TinyLlava model = {};
  std::vector<int> images = {1, 0, 2};      ///< per sample, repeating
  void (*set)(Options&) = nullptr;          ///< what differs in the deck
  bool (*concerns)(const Grid&) = nullptr;  ///< nothing: all grids
  bool gpt2 = false;
  uint64_t seed = 5;                   ///< of the samples
  std::vector<int> clips = {1, 1, 0};  ///< of audio, for models with audio

  void (*remake)(ModelSpec&) = nullptr;  ///< what differs from what config.json says
  /// config.json in place of that of `model`, for a model of its heads.
  std::string (*other_config)(const TinyLlava& model) = nullptr;
  bool (*needs)(const Grid&) = nullptr;  ///< grids_for() includes such a grid

  /// config.json of the model with the heads that `grid` wants.
  std::string config(const Grid& grid) const;
};

const std::vector<GridScenario>& grid_scenarios();
/// The scenarios among them of decoders other than Llama's.
const std::vector<GridScenario>& decoder_scenarios();
/// The scenarios among them whose blocks have gated delta rules.
const std::vector<GridScenario>& scan_scenarios();

/// The grids that `scenario`, one of grid_scenarios(), concerns: all of them, or a few. Each grid
/// of the table is among the few of some scenario.
std::vector<Grid> grids_for(const GridScenario& scenario, bool all);

/// The samples of a scenario, or others like them.
MemoryDataset dataset_of(const GridScenario& scenario, const Grid& grid, uint64_t others = 0);

/// Three steps in fp64 on `grid`.
TinyRunOptions run_of(const GridScenario& scenario, const Grid& grid);

/// One rank, with the heads that `grid` wants.
Grid one_rank_like(const Grid& grid);

}  // namespace zea::testing
