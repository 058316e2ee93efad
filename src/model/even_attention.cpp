// SPDX-License-Identifier: Apache-2.0
// Attention over rows whose segments are all of one length, which a view makes a batch: cuDNN's, of
// which an H100 made 371 TFLOP/s forward and 272 backward where FlashAttention-2 made 213 and 198
// (8 x 2048 tokens, 32 heads of 64 on 8).
#include <ATen/SDPBackend.h>

#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "model/segment_attention.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// Of shorter segments FlashAttention-2 is as fast (16 x 256 tokens, 32 heads of 64 on 8).
constexpr int64_t kShortest = 512;
/// What was tried on a GPU: libtorch takes cuDNN for heads of up to 256, too, and for segments that
/// are seen both ways and end inside a tile, of which other ways of masking have given NaN.
constexpr int64_t kWidestHead = 128, kTile = 128;

bool is_tried(const Tensor& qkv, const SegmentCall& call, int64_t length) {
  return length >= kShortest && qkv.size(2) <= kWidestHead &&
         (call.segments->is_causal() || length % kTile == 0);
}

/// The shapes that cuDNN attends: for each it makes a plan in some 0.1 s, which it keeps. Others
/// are left to kernels without plans where rows come in ever new lengths. The set only grows, so
/// that what is computed again, or in a graph, is computed as before.
class PlannedShapes {
 public:
  bool take(const Tensor& qkv, const SegmentCall& call, int64_t length) {
    const std::lock_guard lock(mutex_);
    const Shape shape{qkv.sizes().vec(), call.kv_heads, length, call.segments->is_causal()};
    if (shapes_.size() < kMost) shapes_.insert(shape);
    return shapes_.contains(shape);
  }

 private:
  using Shape = std::tuple<std::vector<int64_t>, int64_t, int64_t, bool>;
  static constexpr size_t kMost = 16;

  std::mutex mutex_;  // what is computed again in backward comes from a thread of its own
  std::set<Shape> shapes_;
};

/// Of the process, as the plans are.
PlannedShapes& planned_shapes() {
  static PlannedShapes shapes;
  return shapes;
}

/// (segments, heads, length, dim) of (tokens, heads, dim).
Tensor batch_of(const Tensor& rows, int64_t length) {
  return rows.unflatten(0, {-1, length}).transpose(1, 2);
}

Tensor rows_of(const Tensor& batch) {
  return batch.transpose(1, 2).flatten(0, 1);
}

std::array<Tensor, 3> batches_of(const Tensor& qkv, const SegmentCall& call) {
  const int64_t length = call.segments->even_length(qkv.size(0));
  const auto [q, k, v] = parts_of(qkv, call);
  return {batch_of(q, length), batch_of(k, length), batch_of(v, length)};
}

/// Whether the library itself would have cuDNN attend: by the GPU, cuDNN's version, the heads and
/// run.deterministic.
bool is_librarys_choice(const Tensor& qkv, const SegmentCall& call) {
  const auto [q, k, v] = batches_of(qkv, call);
  return at::_fused_sdp_choice(q, k, v, {}, 0.0, call.segments->is_causal(),
                               call.scores.scale_of(q.size(3)), k.size(1) != q.size(1)) ==
         static_cast<int64_t>(at::SDPBackend::cudnn_attention);
}

struct EvenFunction : Function<EvenFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const SegmentCall& call) {
    const auto [q, k, v] = batches_of(qkv, call);
    const auto [out, lse, no_bounds, nor_of_keys, queries, keys, seed, offset, no_mask] =
        at::_cudnn_attention_forward(q, k, v, {}, {}, {}, q.size(2), k.size(2), true, 0.0,
                                     call.segments->is_causal(), false,
                                     call.scores.scale_of(q.size(3)));
    ctx->save_for_backward({qkv, out, lse, seed, offset});
    save_call(ctx, call);
    return rows_of(out).flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const SegmentCall call = saved_call(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const auto [q, k, v] = batches_of(saved[0], call);
    const Tensor dout = outputs[0].contiguous().view({-1, q.size(1), q.size(3)});
    const auto [dq, dk, dv] = at::_cudnn_attention_backward(
        batch_of(dout, q.size(2)), q, k, v, saved[1], saved[2], saved[3], saved[4], {}, {}, {},
        q.size(2), k.size(2), 0.0, call.segments->is_causal(), call.scores.scale_of(q.size(3)));
    return {at::cat({rows_of(dq), rows_of(dk), rows_of(dv)}, 1), {}};
  }
};

}  // namespace

bool attends_evenly(const Tensor& qkv, const SegmentCall& call) {
  const int64_t length = call.segments->even_length(qkv.size(0));
  return call.segments->window() == 0 && is_tried(qkv, call, length) &&
         is_librarys_choice(qkv, call) && planned_shapes().take(qkv, call, length);
}

Tensor even_attention(const Tensor& qkv, const SegmentCall& call) {
  return EvenFunction::apply(qkv, call);
}

}  // namespace zea::detail
