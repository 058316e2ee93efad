// SPDX-License-Identifier: Apache-2.0
// The angles of rotary position embedding (RoFormer, arXiv:2104.09864), in double.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "zea/plan/model/model_spec.hpp"

namespace zea::detail {

/// (positions, head_dim / 2) double on the host.
at::Tensor rotary_angles(const RopeConfig& rope, int64_t head_dim,
                         const std::vector<int64_t>& positions);

}  // namespace zea::detail
