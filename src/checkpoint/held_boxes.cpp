// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/held_boxes.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/threads.hpp"
#include "io/manifest.hpp"

namespace zea::detail {
namespace {

/// Object header, attributes and link of a dataset, and its line in the manifest; measured, and
/// rounded up.
constexpr int64_t kMetadataBytesPerPiece = 2048;
constexpr int64_t kMetadataBytesPerFile = 16384;

struct State {
  StateSpec spec;
  const at::Tensor& values;
};

std::vector<State> states_of(const Engine& engine, const ShardedBuffer& buffer) {
  std::vector<State> states{{{kStateParameter}, buffer.master()}};
  if (buffer.trainable())
    for (const StateSpec& state : engine.plan().optimizer.states)
      states.push_back({state, engine.state(buffer, state.name)});
  return states;
}

}  // namespace

std::vector<HeldBox> held_boxes(const Plan& plan, int buffer, int world_rank, FlatRange range) {
  const int piece_rank = plan.piece_rank(world_rank, buffer);
  std::vector<HeldBox> boxes;
  for (const FlatPart& part : parts_in_range(plan.buffers[buffer], range)) {
    const ParamShard& cut = plan.cuts[part.param];
    const int param = cut.param_of(part.param, piece_rank);
    for (PieceBox& box : boxes_of_piece(plan.model.params[param], cut, piece_rank, part.param_begin,
                                        part.param_begin + part.elements))
      boxes.push_back(
          {param, std::move(box.extent), part.flat_begin + box.begin - part.param_begin});
  }
  return boxes;
}

std::vector<HeldBox> state_boxes(const Plan& plan, int buffer, FlatRange range,
                                 const StateSpec& state, const std::vector<HeldBox>& boxes) {
  std::vector<HeldBox> own;
  for (const HeldBox& box : boxes)
    if (const int64_t each = state.elements_of_each(plan.param_rules[box.param].state_block);
        each > 0)
      own.push_back({box.param, in_blocks(box.extent, each),
                     state_elements(state, plan.buffers[buffer], plan.param_rules,
                                    {range.begin, box.flat_begin})});
  return own;
}

std::vector<HeldBox> own_boxes(const Plan& plan, int buffer, int world_rank) {
  const int piece_rank = plan.piece_rank(world_rank, buffer);
  std::vector<HeldBox> boxes =
      held_boxes(plan, buffer, world_rank, plan.own_range(world_rank, buffer));
  std::erase_if(
      boxes, [&](const HeldBox& box) { return !plan.cuts[box.param].is_first_holder(piece_rank); });
  return boxes;
}

namespace {

/// A few hash blocks: parts of large tensors keep all threads busy to the end.
constexpr int64_t kMostPartBytes = 16 << 20;
/// Fewer bytes are read before a thread has started.
constexpr int64_t kThreadBytes = 4 << 20;
/// Each has a part in host memory; more readers wait for each other.
constexpr int64_t kMostReaders = 16;

std::vector<HeldBox> cut_to_parts(const std::vector<HeldBox>& boxes, int64_t most) {
  std::vector<HeldBox> parts;
  for (const HeldBox& box : boxes) {
    const int64_t elements = box.extent.elements();
    if (elements <= most) {
      parts.push_back(box);
      continue;
    }
    int64_t flat_begin = box.flat_begin;
    for (int64_t first = 0; first < elements; first += most)
      for (Extent& part : boxes_inside(box.extent, first, std::min(elements, first + most))) {
        const int64_t taken = part.elements();
        parts.push_back({box.param, std::move(part), flat_begin});
        flat_begin += taken;
      }
  }
  return parts;
}

void zero_between(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes) {
  int64_t done = range.begin;
  const auto zero_until = [&](int64_t begin) {
    ZEA_ASSERT(begin >= done);
    if (begin > done) flat.narrow(0, done - range.begin, begin - done).zero_();
  };
  for (const HeldBox& box : boxes) {
    zero_until(box.flat_begin);
    done = box.flat_begin + box.extent.elements();
  }
  zero_until(range.end);
}

/// Returns at least two where there is enough to read: one waits for the disk while another
/// checks.
int num_readers(int64_t bytes, int cores) {
  return static_cast<int>(
      std::clamp<int64_t>(bytes / kThreadBytes, 1, std::clamp<int64_t>(cores, 2, kMostReaders)));
}

}  // namespace

void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                int cores, const std::function<void(const HeldBox&, void*)>& read) {
  zero_between(flat, range, boxes);
  const auto element_bytes = static_cast<int64_t>(flat.element_size());
  const std::vector<HeldBox> parts = cut_to_parts(boxes, kMostPartBytes / element_bytes);
  parallel_for(num_readers(flat.numel() * element_bytes, cores), parts.size(), [&](int, size_t p) {
    const HeldBox& box = parts[p];
    const int64_t first = box.flat_begin - range.begin;
    if (flat.is_cpu())
      return read(box, static_cast<char*>(flat.data_ptr()) + first * element_bytes);
    const at::Tensor part = flat.narrow(0, first, box.extent.elements());
    const at::Tensor host = at::empty(part.sizes(), part.options().device(at::kCPU));
    read(box, host.data_ptr());
    part.copy_(host);
  });
}

std::vector<OwnPiece> own_pieces(Engine& engine, const FrozenOrigin* origin) {
  const Plan& plan = engine.plan();
  std::vector<OwnPiece> pieces;
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (!plan.counts(engine.world_rank(), static_cast<int>(g))) continue;
    const ShardedBuffer& buffer = *engine.buffers()[g];
    const std::vector<HeldBox> boxes = own_boxes(plan, static_cast<int>(g), engine.world_rank());
    for (const State& state : states_of(engine, buffer))
      for (const HeldBox& box :
           state_boxes(plan, buffer.index(), buffer.range(), state.spec, boxes)) {
        const ParamSpec& param = plan.model.params[box.param];
        const DType held = dtype_of(state.values);
        const bool changes = plan.changes(buffer.index());
        const bool has_origin = !changes && origin != nullptr;
        pieces.push_back({&param, state.spec.name,
                          state.spec.elements_of_each(plan.param_rules[box.param].state_block),
                          box.extent, state.values.narrow(0, box.flat_begin, box.extent.elements()),
                          changes, has_origin ? origin->type_of(param.name, held) : held});
      }
  }
  std::stable_partition(pieces.begin(), pieces.end(),
                        [](const OwnPiece& piece) { return piece.changes; });
  return pieces;
}

int64_t file_bytes(const std::vector<OwnPiece>& pieces, bool with_frozen) {
  int64_t bytes = kMetadataBytesPerFile * (with_frozen ? 2 : 1);
  for (const OwnPiece& piece : pieces)
    if (piece.changes || with_frozen) bytes += piece.bytes() + kMetadataBytesPerPiece;
  return bytes;
}

}  // namespace zea::detail
