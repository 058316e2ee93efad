// SPDX-License-Identifier: Apache-2.0
// The plan of flat buffers: which parameters lie where in which buffer, and which part of it each
// rank owns. A buffer is keyed by (bundle of units, trainable or frozen); a parameter that two
// units use has a buffer of its own. Parameters start at multiples of kFlatAlignment elements,
// fused ones lie adjacent so that the fused weight is a view.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "layout/sharding.hpp"
#include "spec/model_spec.hpp"
#include "spec/param_cut.hpp"

namespace zea {

/// 256 bytes in the narrowest type (bf16).
inline constexpr int64_t kFlatAlignment = 128;

struct FlatParam {
  int param;         ///< index in ModelSpec::params
  int64_t offset;    ///< first element in the buffer
  int64_t elements;  ///< of the piece that a tp rank holds
};

struct FlatBuffer {
  std::string name;    ///< that of its unit ("first..last" of several), or of its parameter when
                       ///< that has a buffer of its own
  std::string module;  ///< whose strategy and mesh it follows
  bool trainable = true;
  int bundle = -1;  ///< of the units that read it; -1: of no single one (shared, carried)
  std::vector<FlatParam> params;
  std::vector<int> units;  ///< that read it, in walking order; empty for carried parameters
  int64_t elements = 0;    ///< end of the last parameter, before padding

  /// Elements after padding to equal shards of whole alignments.
  int64_t padded(int shards) const;
};

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
using Wrappings = std::map<std::string, Wrapping>;

/// The pieces of all parameters that a tp rank holds; all of each where there are none.
using ParamCuts = std::vector<ParamCut>;

/// For each unit its bundle: neighbouring units of one module, and of one stage where there are
/// several, whose parameters share buffers.
std::vector<int> bundles_of_units(const ModelSpec& model, const Wrappings& wrappings,
                                  const ParamCuts& cuts = {},
                                  const std::vector<int>& stage_of_unit = {});

/// All buffers of a model, in walking order; carried parameters last.
std::vector<FlatBuffer> make_flat_layout(const ModelSpec& model, const Wrappings& wrappings = {},
                                         const ParamCuts& cuts = {},
                                         const std::vector<int>& stage_of_unit = {});

/// For each unit the buffers it reads, in order.
std::vector<std::vector<int>> buffers_of_units(const ModelSpec& model,
                                               const std::vector<FlatBuffer>& buffers);

}  // namespace zea
