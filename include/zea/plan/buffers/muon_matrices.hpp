// SPDX-License-Identifier: Apache-2.0
// The matrices of a buffer that Muon orthogonalises, each a whole tensor of weights files, and who
// of the ranks with a copy of the buffer does so.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "zea/plan/buffers/flat_layout.hpp"
#include "zea/plan/model/param_rules.hpp"

namespace zea {

/// Matrices whose long side is so many times the short one are orthogonalised in products of the
/// short side alone, but for two.
inline constexpr int64_t kMuonLong = 2;

struct MuonMatrix {
  Shape shape;                     ///< of the tensor
  std::vector<FlatParam> members;  ///< its parts in the buffer
  int64_t frozen_updates = 0;
  int owner = 0;  ///< of the ranks that share the work

  int64_t elements() const { return shape[0] * shape[1]; }
};

/// In the order of the buffer. Dealt to `ranks` by their multiplications, costliest first onto the
/// least loaded.
std::vector<MuonMatrix> muon_matrices(const ModelSpec& model, const FlatBuffer& buffer,
                                      const std::vector<ParamRule>& rules, int ranks);

}  // namespace zea
