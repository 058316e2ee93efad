// SPDX-License-Identifier: Apache-2.0
// Attention as one autograd function, whose kernel is chosen here.
#include "model/attention.hpp"

#include <ATen/SDPBackend.h>

#include <mutex>
#include <set>
#include <tuple>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// The arguments that forward and backward of one call share.
struct AttentionCall {
  const AttentionMask* mask;
  int64_t kv_heads;
  AttentionScores scores;
  AttentionKernel kernel;
};

void save_call(Context* ctx, const AttentionCall& call) {
  ctx->saved_data["mask"] = reinterpret_cast<int64_t>(call.mask);
  ctx->saved_data["kv_heads"] = call.kv_heads;
  ctx->saved_data["kernel"] = static_cast<int64_t>(call.kernel);
  save_scores(ctx, call.scores);
}

AttentionCall saved_call(Context* ctx) {
  const auto saved = [&](const char* name) { return ctx->saved_data.at(name).toInt(); };
  return {reinterpret_cast<const AttentionMask*>(saved("mask")), saved("kv_heads"),
          saved_scores(ctx), static_cast<AttentionKernel>(saved("kernel"))};
}

/// The queries', keys' and values' heads of qkv, as views.
AttentionInputs inputs_of(const Tensor& qkv, const AttentionCall& call) {
  const int64_t kv_heads = call.kv_heads, heads = qkv.size(1) - 2 * kv_heads;
  return {qkv.narrow(1, 0, heads), qkv.narrow(1, heads, kv_heads),
          qkv.narrow(1, heads + kv_heads, kv_heads), call.scores.spec};
}

/// Outputs (tokens, heads, head_dim), log-sum-exps in the kernel's layout, and the kernel's random
/// state, which no dropout uses.
struct AttentionResults {
  Tensor out, lse, seed{}, offset{};
};

/// The tokens before a token that it sees; none: all.
std::optional<int64_t> seen_before(const AttentionMask& mask) {
  return mask.window() > 0 ? std::optional(mask.window() - 1) : std::nullopt;
}

AttentionResults flash_forward(const AttentionInputs& in, const AttentionMask& mask) {
  const auto [out, lse, seed, offset, no_mask] = at::_flash_attention_forward(
      in.q, in.k, in.v, mask.bounds(), mask.bounds(), mask.longest(), mask.longest(), 0.0,
      mask.is_causal(), false, in.scores.scale_of(in.q.size(2)), seen_before(mask));
  return {out, lse, seed, offset};
}

Tensor flash_backward(const Tensor& dout, const AttentionInputs& in, const AttentionResults& saved,
                      const AttentionMask& mask) {
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      dout, in.q, in.k, in.v, saved.out, saved.lse, mask.bounds(), mask.bounds(), mask.longest(),
      mask.longest(), 0.0, mask.is_causal(), saved.seed, saved.offset,
      in.scores.scale_of(in.q.size(2)), seen_before(mask));
  return at::cat({dq, dk, dv}, 1);
}

/// (segments, heads, length, head_dim) of (tokens, heads, head_dim).
Tensor batch_of(const Tensor& rows, const AttentionMask& mask) {
  return rows.unflatten(0, {-1, mask.even_length()}).transpose(1, 2);
}

Tensor rows_of(const Tensor& batch) {
  return batch.transpose(1, 2).flatten(0, 1);
}

AttentionResults cudnn_forward(const AttentionInputs& in, const AttentionMask& mask) {
  const int64_t length = mask.even_length();
  const auto [out, lse, no_bounds, nor_of_keys, queries, keys, seed, offset, no_mask] =
      at::_cudnn_attention_forward(batch_of(in.q, mask), batch_of(in.k, mask), batch_of(in.v, mask),
                                   {}, {}, {}, length, length, true, 0.0, mask.is_causal(), false,
                                   in.scores.scale_of(in.q.size(2)));
  return {rows_of(out), lse, seed, offset};
}

Tensor cudnn_backward(const Tensor& dout, const AttentionInputs& in, const AttentionResults& saved,
                      const AttentionMask& mask) {
  const int64_t length = mask.even_length();
  const auto [dq, dk, dv] = at::_cudnn_attention_backward(
      batch_of(dout, mask), batch_of(in.q, mask), batch_of(in.k, mask), batch_of(in.v, mask),
      batch_of(saved.out, mask), saved.lse, saved.seed, saved.offset, {}, {}, {}, length, length,
      0.0, mask.is_causal(), in.scores.scale_of(in.q.size(2)));
  return at::cat({rows_of(dq), rows_of(dk), rows_of(dv)}, 1);
}

AttentionResults slice_forward(const AttentionInputs& in, const AttentionMask& mask) {
  const AttentionSums sums = unwritten_sums(in.q);
  write_attention(sums, in, mask);
  return {sums.out, sums.lse};
}

Tensor slice_backward(const Tensor& dout, const Tensor& qkv, const AttentionResults& saved,
                      const AttentionCall& call) {
  const bool is_tiled = call.kernel == AttentionKernel::Tiled;
  const Tensor dqkv = is_tiled
                          ? at::empty(qkv.sizes(), qkv.options())
                          : at::zeros(qkv.sizes(), qkv.options().dtype(saved.lse.scalar_type()));
  const AttentionInputs parts = inputs_of(dqkv, call);
  const auto backward = is_tiled ? write_attention_gradients : add_attention_gradients;
  backward({parts.q, parts.k, parts.v}, inputs_of(qkv, call), dout, {saved.out, saved.lse},
           *call.mask);
  return dqkv.to(qkv.scalar_type());
}

struct AttentionFunction : Function<AttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const std::optional<Tensor>& anchor,
                        const AttentionCall& call) {
    (void)anchor;
    const AttentionInputs in = inputs_of(qkv, call);
    const auto forward = call.kernel == AttentionKernel::Flash   ? flash_forward
                         : call.kernel == AttentionKernel::Cudnn ? cudnn_forward
                                                                 : slice_forward;
    const auto [out, lse, seed, offset] = forward(in, *call.mask);
    if (call.scores.sinks) add_sinks(sums_of({out, lse}, call), call.scores);
    ctx->save_for_backward({qkv, out, lse, seed, offset});
    save_call(ctx, call);
    return out.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const AttentionCall call = saved_call(ctx);
    const Tensors tensors = ctx->get_saved_variables();
    const Tensor& qkv = tensors[0];
    const AttentionResults saved{tensors[1], tensors[2], tensors[3], tensors[4]};
    const AttentionInputs in = inputs_of(qkv, call);
    const Tensor dout = outputs[0].contiguous().view(in.q.sizes());
    if (call.scores.sinks) add_sink_gradients(call.scores, dout, sums_of(saved, call));
    if (call.kernel == AttentionKernel::Flash)
      return {flash_backward(dout, in, saved, *call.mask), {}, {}};
    if (call.kernel == AttentionKernel::Cudnn)
      return {cudnn_backward(dout, in, saved, *call.mask), {}, {}};
    return {slice_backward(dout, qkv, saved, call), {}, {}};
  }

 private:
  /// FlashAttention-2 has log-sum-exps (heads, tokens).
  static AttentionSums sums_of(const AttentionResults& results, const AttentionCall& call) {
    const bool is_flash = call.kernel == AttentionKernel::Flash;
    return {results.out, is_flash ? results.lse.t() : results.lse};
  }
};

/// The shapes that cuDNN attends: it makes a plan for each in some 0.1 s and keeps it. Other shapes
/// are left to kernels without plans, since rows may come in ever new lengths. The set only grows,
/// so that recomputed attention, and attention in a graph, take the same kernel again.
class PlannedShapes {
 public:
  bool take(const Tensor& qkv, const AttentionMask& mask, int64_t kv_heads) {
    const std::lock_guard lock(mutex_);
    const Shape shape{qkv.sizes().vec(), kv_heads, mask.even_length(), mask.is_causal()};
    if (shapes_.size() < kMost) shapes_.insert(shape);
    return shapes_.contains(shape);
  }

 private:
  using Shape = std::tuple<std::vector<int64_t>, int64_t, int64_t, bool>;
  static constexpr size_t kMost = 16;

  std::mutex mutex_;  // backward recomputes in a thread of its own
  std::set<Shape> shapes_;
};

/// cuDNN keeps its plans for the process.
PlannedShapes& planned_shapes() {
  static PlannedShapes shapes;
  return shapes;
}

/// FlashAttention-2 is as fast for shorter segments (16 x 256 tokens, 32 heads of 64 on 8). For
/// long ones an H100 made 371 TFLOP/s forward and 272 backward with cuDNN, 213 and 198 with
/// FlashAttention-2 (8 x 2048 tokens, 32 heads of 64 on 8).
constexpr int64_t kShortestForCudnn = 512;
/// Tested on a GPU: libtorch takes cuDNN for heads of up to 256, too, and for segments without a
/// causal mask that end inside a tile, of which other ways of masking have given NaN.
constexpr int64_t kWidestForCudnn = 128, kCudnnTile = 128;

/// Whether libtorch itself would have cuDNN attend: by the GPU, cuDNN's version, the heads and
/// run.deterministic.
bool is_librarys_choice(const AttentionInputs& in, const AttentionMask& mask) {
  return at::_fused_sdp_choice(batch_of(in.q, mask), batch_of(in.k, mask), batch_of(in.v, mask), {},
                               0.0, mask.is_causal(), in.scores.scale_of(in.q.size(2)),
                               in.k.size(1) != in.q.size(1)) ==
         static_cast<int64_t>(at::SDPBackend::cudnn_attention);
}

}  // namespace

AttentionKernel choose_attention_kernel(const Tensor& qkv, const AttentionMask& mask,
                                        int64_t kv_heads, const AttentionScores& scores) {
  if (qkv.size(0) == 0) return AttentionKernel::Dense;  // libraries take no empty tensors
  if (takes_tiled_attention(qkv)) return AttentionKernel::Tiled;
  const at::ScalarType type = qkv.scalar_type();
  const bool takes_bounds = !qkv.is_cpu() && (type == at::kBFloat16 || type == at::kHalf) &&
                            scores.spec.softcap == 0 && takes_ragged_heads(qkv.size(2)) &&
                            mask.has_segments();
  if (!takes_bounds) return AttentionKernel::Dense;
  const int64_t length = mask.even_length();
  const bool takes_cudnn =
      !scores.sinks && mask.window() == 0 && length >= kShortestForCudnn &&
      qkv.size(2) <= kWidestForCudnn && (mask.is_causal() || length % kCudnnTile == 0) &&
      is_librarys_choice(inputs_of(qkv, {&mask, kv_heads, scores, {}}), mask) &&
      planned_shapes().take(qkv, mask, kv_heads);
  return takes_cudnn ? AttentionKernel::Cudnn : AttentionKernel::Flash;
}

Tensor attention(const Tensor& qkv, const AttentionMask& mask, int64_t heads, int64_t kv_heads,
                 const AttentionScores& scores) {
  ZEA_ASSERT(qkv.size(1) == heads + 2 * kv_heads && heads % kv_heads == 0);
  ZEA_ASSERT(qkv.size(0) == 0 || !mask.slices().empty());
  const AttentionKernel kernel = choose_attention_kernel(qkv, mask, kv_heads, scores);
  return AttentionFunction::apply(qkv, anchor_of(scores.sinks),
                                  AttentionCall{&mask, kv_heads, scores, kernel});
}

}  // namespace zea
