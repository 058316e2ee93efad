// SPDX-License-Identifier: Apache-2.0
// A tiny model of every family on few layouts of four ranks, which together have every axis.
#pragma once

#include <string>
#include <vector>

#include "support/measured_models.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing {

/// Features that a layout requires of a family's modules.
enum class FamilyFeature { Tp, Cp, Pp, OwnRanks, FrozenEncoder };

struct FamilyLayout {
  const MeasuredModel* model;
  bool is_pipeline;  ///< with frozen encoders on separate ranks; else a grid

  std::string name() const { return model->name + (is_pipeline ? " in stages" : " on a grid"); }
  /// Two steps in fp64.
  TinyRunOptions run() const;
  /// The same on one rank.
  TinyRunOptions run_on_one_rank() const;
  /// Ten samples with at most one image each, so that LLaVA-OneVision splits it into tiles.
  MemoryDataset dataset() const;
};

inline constexpr int kFamilyRanks = 4;
const std::vector<FamilyLayout>& family_layouts();
/// Returns the features of a plan on one of them.
std::vector<FamilyFeature> features_of(const Plan& plan);
/// Returns whether a family cannot have the feature.
bool lacks(const ModelSpec& model, FamilyFeature feature);

}  // namespace zea::testing
