// SPDX-License-Identifier: Apache-2.0
// From a deck to the grid of all ranks.
#pragma once

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

/// Whether modules or stages have ranks of their own.
bool is_pipelined(const Options& options);

/// Adds a fault for every degree, mode or product that does not fit; the shape is of use only where
/// there are none.
MeshShape make_mesh_shape(Faults& faults, const Options& options, const ModelSpec& model,
                          int world_size);

}  // namespace zea::detail
