// SPDX-License-Identifier: Apache-2.0
// The tables of rotary position embedding (RoFormer, arXiv:2104.09864), whose angles are taken in
// double.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "batch/make_microbatch.hpp"
#include "layout/token_positions.hpp"

namespace zea::detail {

/// (tokens, pairs of coordinates that turn) double on the host: cosines and sines of their angles,
/// times the attention factor.
struct RotaryTables {
  at::Tensor cosines, sines;
};

/// Of tokens at `positions` of samples that have `lengths` tokens.
RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim,
                           const std::vector<TokenPosition>& positions,
                           const std::vector<int64_t>& lengths);
/// For each way in which blocks attend, in `dtype` on the device.
void fill_rotary_tables(std::vector<TokenAttention>& attention, const BlockSpec& block,
                        const std::vector<TokenPosition>& positions,
                        const std::vector<int64_t>& lengths, at::ScalarType dtype,
                        at::Device device);

}  // namespace zea::detail
