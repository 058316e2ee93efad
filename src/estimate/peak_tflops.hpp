// SPDX-License-Identifier: Apache-2.0
// The denominator of MFU: the peak rate of the ranks' devices.
#pragma once

#include <string>

#include "schedule/plan.hpp"

namespace zea {

/// The data sheet's TFLOP/s of the GPU `name` for dense GEMMs on tensor cores (bf16), or on fp32
/// cores, since zea multiplies fp32 without TF32; 0: not known, also for parts of a GPU (MIG).
double data_sheet_tflops(const std::string& name, DType compute);

/// The peak of one rank: run.peak_tflops, or else that of the GPU called `gpu` (empty: none) in the
/// type in which all modules compute; 0: not known, also if modules compute in several types or
/// ranks share a GPU.
double peak_tflops(const Plan& plan, const std::string& gpu);

}  // namespace zea
