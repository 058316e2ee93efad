// SPDX-License-Identifier: Apache-2.0
// RMSNorm over all query heads, and over all key heads, of a token, which tp ranks share: each sums
// its own heads, and two sums per token are all-reduced, forward and backward.
//   y = n (weight + offset), n = x r, r = 1 / sqrt(mean(x^2) + eps)
//   dx = r (d - n mean(d n)), d = dy (weight + offset)
#include "core/error.hpp"
#include "parallel/tp_row_comm.hpp"

namespace zea::detail {
namespace {

/// (tokens, 2, width here) of x (tokens, 3, width here), wide.
Tensor queries_and_keys(const Tensor& x) {
  return wide(x.narrow(1, 0, 2));
}

/// (2, width here)
Tensor factors(const Parameter& query, const Parameter& key, double offset) {
  return wide(at::stack({query.value(), key.value()})) + offset;
}

/// Means of x (tokens, 2, width here) over the widths of all ranks: (tokens, 2, 1).
Tensor means(const TpRowComm& rows, const Tensor& x) {
  Tensor sums = rows.partial(x.size(0), x.size(1), x.options());
  at::sum_out(sums, x, {-1});
  const int64_t width = x.size(2) * rows.tp().size();
  return rows.sum(sums).take().div_(width).unsqueeze(-1);
}

/// x with `changed` in place of its queries and keys.
Tensor with_changed(const Tensor& x, const Tensor& changed) {
  Tensor y = x.clone();
  y.narrow(1, 0, 2).copy_(changed);
  return y;
}

struct JointHeadNormsFunction : Function<JointHeadNormsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const TpRowComm* rows,
                        Parameter* query, Parameter* key, const NormSpec& spec) {
    (void)anchor;
    remember(ctx, {query, key});
    remember_rows(ctx, *rows);
    ctx->saved_data["offset"] = spec.offset;
    const Tensor both = queries_and_keys(x);
    const Tensor scale = means(*rows, both.square()).add_(spec.eps).rsqrt_();
    ctx->save_for_backward({x, scale});
    return with_changed(x, (both * scale).mul_(factors(*query, *key, spec.offset)));
  }

  // A gradient of the weights is that of their heads, which no other rank has.
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor& scale = saved[1];
    Parameter* query = recall(ctx, 0);
    Parameter* key = recall(ctx, 1);
    const Tensor dy = queries_and_keys(outputs[0]);
    const Tensor normed = queries_and_keys(saved[0]) * scale;
    if (query->trainable()) {
      const Tensor sums = (dy * normed).sum(0);
      query->gradient().add_(sums[0]);
      key->gradient().add_(sums[1]);
    }
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}, {}};
    Tensor d = dy * factors(*query, *key, ctx->saved_data.at("offset").toDouble());
    const Tensor slope = means(recall_rows(ctx), d * normed);
    d.addcmul_(normed, slope, -1).mul_(scale);
    return {with_changed(outputs[0], d), {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor tp_joint_head_norms(const TpRowComm& rows, const at::Tensor& qkv, Parameter& query,
                               Parameter& key, const NormSpec& spec) {
  ZEA_ASSERT(spec.kind == NormKind::Rms);
  return JointHeadNormsFunction::apply(qkv, query.anchor(), &rows, &query, &key, spec);
}

}  // namespace zea::detail
