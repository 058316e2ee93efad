// SPDX-License-Identifier: Apache-2.0
#include "batch/make_microbatch.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

namespace zea {
namespace {

/// The tensors of a microbatch that is to be on `device`.
class PackedTensors {
 public:
  PackedTensors(Microbatch& made, at::Device device) : device_(device) {
    for (at::Tensor* tensor :
         {&made.token_ids, &made.positions, &made.target_rows, &made.target_ids, &made.last_rows,
          &made.further.rows, &made.further.ids, &made.next_rows})
      add(*tensor);
    for (TokenAttention& attention : made.text_attention) add(attention);
    add(made.text_scan.tokens.starts);
    add(made.text_scan.tokens.chunks);
    if (made.text_scan.passed) add(made.text_scan.passed->run);
    add(made.text_keys);
    if (made.cached) {
      add(made.cached->rows);
      add(made.cached->samples);
    }
    for (EncoderPart& part : made.encoders) add(part);
  }

  const std::vector<at::Tensor*>& list() const { return list_; }

 private:
  void add(at::Tensor& tensor) {
    if (tensor.defined()) list_.push_back(&tensor);
  }
  void add(RowKeys& keys) {
    add(keys.here);
    add(keys.of_cp);
  }
  void add(DeltaRun& run) {
    add(run.starts);
    for (DeltaPiece& piece : run.pieces) add(piece.tokens.chunks);
  }
  void add(RowTransfer& transfer) {
    add(transfer.sent_rows);
    add(transfer.received_rows);
  }
  void add_bounds(AttentionMask& mask) {
    if (mask.has_segments()) add(mask.bounds_on(device_));
  }
  void add(TokenAttention& attention) {
    add(attention.rotary_cosines);
    add(attention.rotary_sines);
    add_bounds(attention.mask);
    if (attention.context)
      for (AttentionMask& mask : attention.context->masks) add_bounds(mask);
  }
  void add(EncoderPart& part) {
    for (at::Tensor* tensor :
         {&part.positions, &part.position_table, &part.corners, &part.corner_shares,
          &part.feature_rows, &part.feature_corners, &part.feature_shares_of, &part.row_ends,
          &part.placeholder_rows, &part.patches, &part.patch_rows, &part.columns})
      add(*tensor);
    for (at::Tensor& windows : part.windows) add(windows);
    for (TokenAttention& attention : part.attention) add(attention);
    add(part.keys);
    add(part.feature_keys);
    add(part.features);
    add(part.feature_gradients);
    for (at::Tensor& states : part.states) add(states);
  }

  const at::Device device_;
  std::vector<at::Tensor*> list_;
};

/// Tensors begin at multiples of this in the block, as kernels expect of memory.
constexpr int64_t kAlignment = 256;

int64_t end_of(int64_t begin, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  return begin + (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A tensor like `like` in the bytes of the block, which it keeps, from `begin` on.
at::Tensor part_of(const at::Tensor& block, int64_t begin, const at::Tensor& like) {
  return at::from_blob(
      static_cast<uint8_t*>(block.data_ptr()) + begin, like.sizes(), [block](void*) {},
      like.options().device(block.device()), block.device());
}

/// Its memory is of the stream that copies, so nothing that is computed has to end first, and goes
/// back there when what uses it from now on is done.
at::Tensor moved(const at::Tensor& block, at::Device device,
                 const std::optional<c10::Stream>& copies) {
  if (!copies) return block.to(device, /*non_blocking=*/true);
  const c10::Stream computes = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const c10::StreamGuard guard(*copies);
  at::Tensor there = block.to(device, /*non_blocking=*/true);
  c10::Event copied(device.type());
  copied.record(*copies);
  copied.block(computes);
  there.record_stream(computes);
  return there;
}

/// Replaces the tensors of `packed` by views of `block`, in the order of packing.
void place(Microbatch& packed, const at::Tensor& block) {
  const PackedTensors tensors(packed, block.device());
  int64_t begin = 0;
  for (at::Tensor* tensor : tensors.list()) {
    const at::Tensor there = part_of(block, begin, *tensor);
    begin = end_of(begin, *tensor);
    *tensor = there;
  }
  packed.block = block;
}

bool attend_alike(const std::vector<TokenAttention>& a, const std::vector<TokenAttention>& b) {
  return std::ranges::equal(a, b, [](const TokenAttention& one, const TokenAttention& other) {
    return one.mask == other.mask;
  });
}

bool scans_alike(const TokenScan& a, const TokenScan& b) {
  if (a.tokens.bounds != b.tokens.bounds || a.passed.has_value() != b.passed.has_value())
    return false;
  return !a.passed || a.passed->plan == b.passed->plan;
}

}  // namespace

PackedMicrobatch pack(Microbatch made, at::Device device) {
  PackedMicrobatch packed{std::move(made), {}};
  if (device.is_cpu()) return packed;
  const PackedTensors tensors(packed.made, at::kCPU);
  int64_t bytes = 0;
  for (const at::Tensor* tensor : tensors.list()) bytes = end_of(bytes, *tensor);
  packed.block = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  int64_t begin = 0;
  for (at::Tensor* tensor : tensors.list()) {
    const at::Tensor there = part_of(packed.block, begin, *tensor);
    there.copy_(*tensor);
    begin = end_of(begin, *tensor);
    *tensor = there;
  }
  return packed;
}

Microbatch move_to(at::Device device, PackedMicrobatch packed, std::optional<c10::Stream> copies) {
  if (!packed.block.defined()) return std::move(packed.made);
  place(packed.made, moved(packed.block, device, copies));
  return std::move(packed.made);
}

Microbatch with_own_block(Microbatch on_device) {
  place(on_device, on_device.block.clone());
  return on_device;
}

bool is_laid_out_alike(Microbatch a, Microbatch b) {
  const PackedTensors ours(a, a.block.device()), theirs(b, b.block.device());
  const auto is_alike = [](const at::Tensor* one, const at::Tensor* other) {
    return one->sizes() == other->sizes() && one->scalar_type() == other->scalar_type();
  };
  const auto encodes_alike = [](const EncoderPart& one, const EncoderPart& other) {
    return one.local_items == other.local_items && one.frames == other.frames &&
           attend_alike(one.attention, other.attention);
  };
  return a.tokens == b.tokens && a.items == b.items && a.targets == b.targets &&
         a.text_rows == b.text_rows && attend_alike(a.text_attention, b.text_attention) &&
         scans_alike(a.text_scan, b.text_scan) &&
         std::ranges::equal(a.encoders, b.encoders, encodes_alike) &&
         std::ranges::equal(ours.list(), theirs.list(), is_alike);
}

}  // namespace zea
