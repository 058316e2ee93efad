// SPDX-License-Identifier: Apache-2.0
#include "own_pieces.hpp"

#include <algorithm>

#include "held_boxes.hpp"
#include "zea/io/manifest.hpp"
#include "zea/io/shard_file.hpp"

namespace zea::detail {
namespace {

/// Object header, attributes and link of a dataset, and its line in the manifest; measured, and
/// rounded up.
constexpr int64_t kMetadataBytesPerPiece = 2048;
constexpr int64_t kMetadataBytesPerFile = 16384;

struct State {
  std::string name;
  const at::Tensor& values;
};

std::vector<State> states_of(const Engine& engine, const ShardedBuffer& buffer) {
  std::vector<State> states{{kStateParameter, buffer.master()}};
  if (buffer.trainable())
    for (const StateSpec& state : engine.plan().optimizer.states)
      states.push_back({state.name, engine.state(buffer, state.name)});
  return states;
}

}  // namespace

int64_t own_file_bytes(Engine& engine, bool with_frozen) {
  const Plan& plan = engine.plan();
  int64_t bytes = kMetadataBytesPerFile * (with_frozen ? 2 : 1);
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (!plan.counts(engine.world_rank(), static_cast<int>(g))) continue;
    if (!plan.buffers[g].trainable && !with_frozen) continue;
    const auto num_states = static_cast<int64_t>(states_of(engine, *engine.buffers()[g]).size());
    for (const HeldBox& box : own_boxes(plan, static_cast<int>(g), engine.world_rank()))
      bytes += num_states * (ShardWriter::piece_bytes(box.extent, plan.precision.master) +
                             kMetadataBytesPerPiece);
  }
  return bytes;
}

std::vector<OwnPiece> own_pieces(Engine& engine) {
  const Plan& plan = engine.plan();
  std::vector<OwnPiece> pieces;
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (!plan.counts(engine.world_rank(), static_cast<int>(g))) continue;
    const ShardedBuffer& buffer = *engine.buffers()[g];
    const std::vector<HeldBox> boxes = own_boxes(plan, static_cast<int>(g), engine.world_rank());
    for (const State& state : states_of(engine, buffer))
      for (const HeldBox& box : boxes)
        pieces.push_back(
            {&plan.model.params[box.param], state.name, box.extent,
             state.values.narrow(0, box.flat_begin - buffer.range().begin, box.extent.elements()),
             buffer.trainable()});
  }
  std::stable_partition(pieces.begin(), pieces.end(),
                        [](const OwnPiece& piece) { return piece.changes; });
  return pieces;
}

}  // namespace zea::detail
