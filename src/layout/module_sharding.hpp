// SPDX-License-Identifier: Apache-2.0
// From a module's deck section to its sharding and wrapping, refusing what does not go together.
#pragma once

#include <string>

#include "core/error.hpp"
#include "deck/options.hpp"
#include "layout/axis.hpp"
#include "layout/flat_layout.hpp"
#include "layout/token_layout.hpp"
#include "spec/model_spec.hpp"

namespace zea::detail {

/// Facts of the whole run that decide about a module's sharding.
struct RunKind {
  DeviceKind device;          ///< run.device
  bool is_pipelined = false;  ///< modules or stages have ranks of their own
};

/// Adds a fault, with its reason, for every setting of the module's section that another one makes
/// impossible or that the strategy has no use for. Of `mesh` only the data-parallel degrees are
/// read.
void check_sharding(const ModuleMeshOptions& options, const MeshShape& mesh, const ModuleGrid& grid,
                    const RunKind& run, Faults& faults);

/// Returns the sharding of the module's buffers; `is_over_ep`: of experts that ep ranks share.
Sharding make_sharding(const ModuleMeshOptions& options, const MeshShape& mesh,
                       const ModuleGrid& grid, bool is_pipelined, bool is_over_ep = false);

/// Returns that of a buffer of states, of which every rank holds all.
Sharding sharding_of_states(const MeshShape& mesh, const std::string& module);

/// Says when a sharded buffer of a pipeline is gathered and reduced: once for all microbatches of a
/// step, or each time that a unit needs it.
void gather(Sharding& sharding, const ModuleMeshOptions& options, bool once_a_step);

/// Whether the deck leaves that to zea.
bool may_gather_for_each_use(const ModuleMeshOptions& options);

/// `gradient_bytes` is the size of one element of a gradient.
WrapPolicy make_wrap_policy(const ModuleMeshOptions& options, int64_t gradient_bytes);

// From a deck to how a module's tokens are dealt to its ranks.

/// The tokens of a microbatch, and their type, by which cp ranks choose what they exchange.
struct MicrobatchFormat {
  int64_t tokens;
  DType type;
};

TokenSharding make_token_sharding(const std::string& module, const ModuleMeshOptions& options,
                                  const ModelSpec& model, const MicrobatchFormat& format);

}  // namespace zea::detail
