// SPDX-License-Identifier: Apache-2.0
// The gated delta rule over tokens that are distributed over cp ranks, which pass states: each
// scans a run of neighboring tokens with all heads (kernels/delta_run.hpp). Rows that other ranks
// own, and the tokens before the run that its convolution reads, are exchanged before the scan;
// outputs of tokens that other ranks own, after it.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "model/delta_rule.hpp"

namespace zea {

/// As delta_rule(), for the tokens of this rank. Collective over `cp`, and so is its backward; scan
/// and group outlive the graph.
at::Tensor passed_delta_rule(const at::Tensor& x, const PassedScan& scan,
                             const DeltaParameters& parameters, const DeltaRuleSpec& rule,
                             Collectives& cp);

}  // namespace zea
