// SPDX-License-Identifier: Apache-2.0
// Measurements of one process: costs of units, by which plans split stages, and the rates of its
// device, by which plans predict seconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "deck/hardware.hpp"
#include "deck/options.hpp"

namespace zea {

struct Profile {
  std::string json;   ///< content of the file of mesh.profile
  std::string table;  ///< the same for people
};

/// Measures each unit on one process with a full microbatch of assumed samples, forward and
/// backward as the engine calls it: the model of `config_json` with all of it trained, and the
/// rows, types, device and threads of `options`, but not its mesh. Equal units are measured once.
/// Throws PlanError if rows are too short for an item of an encoder.
Profile profile_units(const Options& options, const std::string& config_json);

/// Returns the seconds of launching an operation: those of a tiny block in `type`, forward and
/// backward, over the number of launches that plans count.
double launch_seconds(at::Device device, DType type);

/// Returns the measured seconds of a block of usual size in `type`, forward and backward, over
/// those that plans predict from `rates`.
double block_seconds_over_planned(at::Device device, DType type, const DeviceRates& rates);

/// Measures `device` with libtorch's threads as they are set. Shares are of GEMMs and attention in
/// `type`, of `peak_tflops` or of the fastest GEMM if that is faster; the other types' peaks are
/// such that their largest GEMM has the share of `type`'s. Shares and the rate of memory are scaled
/// so that a whole block takes as long as it does: its kernels find less in caches than those that
/// run again and again.
DeviceRates profile_device(at::Device device, DType type, double peak_tflops);

}  // namespace zea
