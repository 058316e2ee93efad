// SPDX-License-Identifier: Apache-2.0
// The tables of rotary position embedding (RoFormer, arXiv:2104.09864), whose angles are taken in
// double.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "zea/batch/make_microbatch.hpp"
#include "zea/plan/tokens/token_positions.hpp"

namespace zea::detail {

/// Of tokens at `positions`, for each way in which blocks attend: (positions, head_dim / 2) in
/// `dtype` on the device.
void fill_rotary_tables(std::vector<TokenAttention>& attention, const BlockSpec& block,
                        const std::vector<TokenPosition>& positions, at::ScalarType dtype,
                        at::Device device);

}  // namespace zea::detail
