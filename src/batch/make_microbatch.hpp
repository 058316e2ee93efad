// SPDX-License-Identifier: Apache-2.0
// From loaded samples to what units read: on the host, then moved to the device once. Where several
// ranks share a microbatch, this rank's part of it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "batch/packed_microbatch.hpp"
#include "data/loader.hpp"
#include "layout/token_layout.hpp"
#include "spec/model_spec.hpp"

namespace zea {

struct MicrobatchOptions {
  at::ScalarType dtype = at::kFloat;  ///< the language model computes in
  /// Each encoder computes in; those beyond in that of the language model.
  std::vector<at::ScalarType> encoder_dtypes = {};
  at::Device device = at::kCPU;
  bool images_both_ways = false;  ///< features of an image see all of it in the language model
  ReplicaLayout replica = {};     ///< the ranks that share the microbatch
  uint64_t seed = 0;              ///< of the run
  std::optional<int64_t> trained_step = {};  ///< for which dropout draws; none: it drops nothing
};

/// Throws DataError where the placeholders of a sample do not match its items, or an id or a
/// position lies beyond the model's.
Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options);

/// The same, not yet on the device: any thread may make it. On the host it may refer to `loaded`.
PackedMicrobatch make_packed_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                        const MicrobatchOptions& options);

}  // namespace zea
