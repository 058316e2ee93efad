// SPDX-License-Identifier: Apache-2.0
// Makes the mesh of a run: the grid of each module, and the world sizes that fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "spec/model_spec.hpp"

namespace zea {

// World sizes that a mesh can have: a replica's ranks times the data-parallel degrees, of
// which one may take what is left.

/// The world sizes nearest to `world_size` that hold whole replicas of `replica_ranks`, ascending:
/// the largest below and the smallest above it, or `world_size` alone where it fits. A degree of -1
/// is free; the others are 1 or more.
std::vector<int64_t> fitting_world_sizes(int64_t replica_ranks, int64_t dp_replicate,
                                         int64_t dp_shard, int64_t world_size);

/// The same as a clause: "the nearest world sizes that fit are 11 and 22".
std::string nearest_world_sizes(int64_t replica_ranks, int64_t dp_replicate, int64_t dp_shard,
                                int64_t world_size);

}  // namespace zea

namespace zea::detail {

// A module's grid inside a replica: its tensor, context and module-data-parallel degrees, checked
// against what its parameters and heads allow.

/// Whether `ranks` can exchange tokens for heads among `tp` tensor-parallel ones.
bool can_use_ulysses(const BlockSpec& block, int64_t tp, int64_t ranks);

/// Whether `ranks` can exchange tokens for heads in scans of gated delta rules, likewise.
bool can_scan_with_ulysses(const BlockSpec& block, int64_t tp, int64_t ranks);

/// tp x cp of the module.
int64_t degrees_product(const ModuleMeshOptions& options);
/// Stages along pp, as pp or the template says.
int64_t pipeline_ranks(const ModuleMeshOptions& options);

/// Whether its degrees, modes and the model fit each other.
void check_degrees(const std::string& module, const ModuleMeshOptions& options,
                   const ModelSpec& model, Faults& faults);

/// The grid of a module of which each stage stands on `stage_ranks` ranks, which `whose` names in a
/// sentence; what the module's degrees leave over becomes dp_module.
ModuleGrid make_module_grid(const std::string& module, const ModuleMeshOptions& options,
                            const ModelSpec& model, int64_t stage_ranks, const std::string& whose,
                            Faults& faults);

/// Whether `ep` ranks can share the experts of every mixture.
bool divides_experts(const ModelSpec& model, int64_t ep);
/// The tp ranks that `ep` counts: all if each holds whole experts, else 1.
int64_t ep_tp(const ModuleMeshOptions& options);
/// Whether an ep group of `ep` ranks fits the grid: all `tp` ranks (1: ep does not count them),
/// times neighbors along cp, or times all cp ranks and neighbors along dp_shard.
bool divides_ranks(int64_t tp, int64_t cp, int64_t dp_shard, int64_t ep);

/// Distributes the experts of the language model, the last module, over its cp ranks and dp_shard,
/// with etp = 1 also over its tp ranks, and chooses how tokens are dispatched to them.
void set_ep(MeshShape& shape, const ModuleMeshOptions& options, const ModelSpec& model,
            DeviceKind device, Faults& faults);

bool is_sequence_parallel(const ModuleMeshOptions& options);

/// Returns the chunks of rows of a module's linears: as the deck says, or by the rows' sizes.
RowChunks chosen_chunks(const ModuleGrid& grid, const Options& options, const ModelSpec& model);

/// Neighbouring cp ranks that exchange tokens for heads.
int inner_ranks(const ModuleMeshOptions& options);

// From a deck to the grid of all ranks.

/// Whether modules or stages have ranks of their own.
bool is_pipelined(const Options& options);

/// Adds a fault for every degree, mode or product that does not fit; the shape is of use only where
/// there are none.
MeshShape make_mesh_shape(Faults& faults, const Options& options, const ModelSpec& model,
                          int world_size);

}  // namespace zea::detail
