// SPDX-License-Identifier: Apache-2.0
// How the flat buffers of a module lie on the data-parallel ranks, and when they are gathered: a
// deck's strategy and its refinements as plain numbers (ZeRO, arXiv:1910.02054; FSDP,
// arXiv:2304.11277).
#pragma once

#include <cstdint>

#include "zea/deck/named_values.hpp"

namespace zea {

struct Sharding {
  int shards = 1;    ///< ranks that share one copy
  int replicas = 1;  ///< copies
  bool keeps_until_backward =
      false;  ///< stays gathered between a microbatch's forward and backward
  /// Gathered once for all microbatches of a step, as pipelines do.
  bool keeps_for_step = false;
  /// Neighbouring ranks that share a copy between them; 0: all that is kept are the shards.
  int subgroup = 0;
  Prefetch forward_prefetch = Prefetch::Pre;
  Prefetch backward_prefetch = Prefetch::Pre;
  int prefetch_depth = 1;
  /// Gradients are reduced to their shards after every microbatch; false: once per step.
  bool reduces_each_microbatch = true;
  /// Masters, optimizer state and owned gradients lie in host memory while a device computes.
  bool offloads = false;
  bool pins_memory = false;  ///< that host memory is pinned

  /// Gathered for one unit at a time, from other ranks or from host memory; false: its owner always
  /// has all of it where it computes.
  bool gathered() const { return shards > 1 || offloads; }
};

/// Which parameters form one flat buffer: the parameters of so many neighbouring units of a module.
struct Wrapping {
  int64_t units = 1;            ///< at most; 0: any number
  int64_t bucket_elements = 0;  ///< units are added until so much trains; 0: up to `units`
  bool each_parameter = false;  ///< every parameter (fused run) has a buffer of its own
};

}  // namespace zea
