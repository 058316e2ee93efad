// SPDX-License-Identifier: Apache-2.0
// The denominator of MFU: the peak rate of the ranks' devices.
#pragma once

#include <string>

#include "schedule/plan.hpp"

namespace zea {

/// Dense products on tensor cores (bf16) or, since zea multiplies fp32 without TF32, on the cores
/// of fp32: TFLOP/s of the GPU that its maker calls `name`, by the data sheet; 0: not known, as of
/// parts of a GPU (MIG).
double data_sheet_tflops(const std::string& name, DType compute);

/// The peak of one rank: run.peak_tflops, or else the peak of the GPU called `gpu` (empty: none) in
/// the type that all modules compute in; 0: not known, as where these are several or ranks share a
/// GPU.
double peak_tflops(const Plan& plan, const std::string& gpu);

}  // namespace zea
