// SPDX-License-Identifier: Apache-2.0
// The gated delta rule over tokens that are distributed over cp ranks, which exchange tokens for
// heads (arXiv:2309.14509): each scans all tokens of the row, in order, with some of the heads.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "model/delta_rule.hpp"

namespace zea {

/// As delta_rule(), for the tokens of this rank. Collective over `cp`, whose size divides the key
/// heads, and so is its backward; scan and group outlive the graph. Decoding takes other sizes,
/// too: then each rank computes all heads.
at::Tensor context_delta_rule(const at::Tensor& x, const TokenScan& scan,
                              const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                              Collectives& cp, const DeltaDecoding* decoding = nullptr);

}  // namespace zea
