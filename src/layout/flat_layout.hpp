// SPDX-License-Identifier: Apache-2.0
// Flat parameter buffers, and how each of them is sharded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deck/key_types.hpp"
#include "layout/axis.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_shard.hpp"
#include "spec/precision.hpp"

namespace zea {

// How a flat buffer lies on the ranks of its module, and when it is gathered: a deck's strategy and
// its refinements as plain values (ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277). Each
// buffer has its own axes over which it is split, sharded and summed, since expert parallelism
// places experts differently.

struct Sharding {
  std::vector<Axis> split_over = {Axis::Tp};  ///< their ranks hold different tp or ep shards
  std::vector<Axis> sharded_over = {};        ///< their ranks share one copy
  std::vector<Axis> summed_over = {};         ///< their ranks have copies and add their gradients
  int shards = 1;                             ///< ranks along sharded_over
  int replicas = 1;                           ///< ranks along summed_over
  bool keeps_until_backward =
      false;  ///< stays gathered between a microbatch's forward and backward
  /// Gathered once for all microbatches of a step, as pipelines may.
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

/// Lays a buffer of `module` over ranks; shards and replicas follow. Sets of axes that no strategy
/// has are named in ModuleGrid::buffer_axes, too.
void set_placement(Sharding& sharding, const MeshShape& mesh, const std::string& module,
                   const std::vector<Axis>& sharded_over, const std::vector<Axis>& summed_over);

/// The wrap policy says which parameters form one flat buffer: the parameters of so many
/// neighbouring units of a module.
struct WrapPolicy {
  int64_t units = 1;            ///< at most; 0: any number
  int64_t bucket_elements = 0;  ///< units are added until so much trains; 0: up to `units`
  bool each_parameter = false;  ///< every parameter (fused run) has a buffer of its own
};

// The plan of flat buffers: which parameters lie where in which buffer, and which part of it each
// rank owns. A buffer is keyed by (FSDP unit, trainable or frozen, states or weights, of experts
// that ep ranks share or not); a parameter that two units use has a buffer of its own. Parameters
// start at multiples of kFlatAlignment elements, fused ones lie adjacent so that the fused weight
// is a view.

/// 256 bytes in the narrowest type (bf16).
inline constexpr int64_t kFlatAlignment = 128;

struct FlatParam {
  int param;         ///< index in ModelSpec::params; of experts see ParamShard::param_of
  int64_t offset;    ///< first element in the buffer
  int64_t elements;  ///< of the piece that a tp rank holds
};

struct FlatBuffer {
  std::string name;    ///< that of its unit ("first..last" of several), or of its parameter when
                       ///< that has a buffer of its own
  std::string module;  ///< whose strategy and mesh it follows
  bool trainable = true;
  bool is_state = false;    ///< of states (ParamSpec::is_state), which are never gathered
  bool is_over_ep = false;  ///< of experts, of which each ep rank has its own
  int fsdp_unit = -1;       ///< of the units that read it; -1: of no single one (shared, carried)
  std::vector<FlatParam> params;
  std::vector<int> units;  ///< that read it, in walking order; empty for carried parameters
  int64_t elements = 0;    ///< end of the last parameter, before padding

  /// Returns whether units read it in the type that they compute in.
  bool is_computed_with() const { return !units.empty() && !is_state; }
  /// Elements after padding to equal shards of whole alignments.
  int64_t padded(int shards) const;
};

/// Whether `next` lies directly behind `param` in a buffer, as one weight with it.
bool is_fused_with(const ModelSpec& model, int param, int next);

/// The element range [begin, end) of a flat buffer that rank `shard` of `shards` owns.
struct FlatRange {
  int64_t begin;
  int64_t end;
};
FlatRange shard_range(const FlatBuffer& buffer, int shard, int shards);

/// Part of a parameter that lies in `range`: positions in the parameter and in the flat buffer.
struct FlatPart {
  int param;
  int64_t param_begin;  ///< row-major element of the piece
  int64_t flat_begin;   ///< element of the flat buffer
  int64_t elements;
};
std::vector<FlatPart> parts_in_range(const FlatBuffer& buffer, FlatRange range);

/// How each module's units are wrapped; a unit a buffer where nothing is said.
using WrapPolicies = std::map<std::string, WrapPolicy>;

/// The pieces of all parameters that a tp rank holds; all of each where there are none.
using ParamShards = std::vector<ParamShard>;

/// Returns for each unit its FSDP unit: neighbouring units of one module, and of one stage where
/// there are several, whose parameters share buffers.
std::vector<int> fsdp_units_of(const ModelSpec& model, const WrapPolicies& wrappings,
                               const ParamShards& cuts = {},
                               const std::vector<int>& stage_of_unit = {});

/// All buffers of a model, in walking order; carried parameters last.
std::vector<FlatBuffer> make_flat_layout(const ModelSpec& model, const WrapPolicies& wrappings = {},
                                         const ParamShards& cuts = {},
                                         const std::vector<int>& stage_of_unit = {});

/// For each unit the buffers it reads, in order.
std::vector<std::vector<int>> buffers_of_units(const ModelSpec& model,
                                               const std::vector<FlatBuffer>& buffers);

// The bytes that a rank owns for one element of a shard, but for the optimizer's states beside it.

/// In bytes.
struct OwnedBytes {
  /// The master with the copy in the compute type where that is another, or the frozen parameter.
  int64_t parameters = 0;
  int64_t gradients = 0;

  int64_t total() const { return parameters + gradients; }
};

/// `is_read`: FlatBuffer::is_computed_with().
inline OwnedBytes owned_bytes(const Precision& precision, bool trains, bool is_read) {
  const auto bytes = [](DType dtype) { return static_cast<int64_t>(element_bytes(dtype)); };
  const DType owned = precision.owned(trains, is_read);
  const int64_t copy = is_read && precision.param != owned ? bytes(precision.param) : 0;
  return {.parameters = bytes(owned) + copy, .gradients = trains ? bytes(precision.master) : 0};
}

}  // namespace zea
