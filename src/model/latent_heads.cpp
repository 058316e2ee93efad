// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (arXiv:2405.04434) as attention of equal heads: their queries, keys
// and values are composed of what its linears make.
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// Views of the parts of heads, in rows of equal heads and as linears make them.
class HeadParts {
 public:
  HeadParts(const LatentSpec& latent, int64_t heads, int64_t dim)
      : latent_(latent), heads_(heads), dim_(dim) {}

  int64_t heads() const { return heads_; }

  /// Calls visit(part of equal heads, the same part as it was made) for all parts; `qkv` (tokens,
  /// 3, heads, dim), queries (tokens, heads, plain + rotary), keys_and_values (tokens, heads, plain
  /// + value), rotary (tokens, heads, rotary).
  template <class Visit>
  void each(const Tensor& qkv, const Tensor& queries, const Tensor& keys_and_values,
            const Tensor& rotary, const Visit& visit) const {
    const auto& [query_rank, rank, plain, turned, value, interleaved, norm] = latent_;
    const Tensor q = qkv.select(1, 0), k = qkv.select(1, 1), v = qkv.select(1, 2);
    each_of_pairs(q, queries.narrow(2, plain, turned), visit);
    each_of_pairs(k, rotary, visit);
    visit(q.narrow(2, turned, plain), queries.narrow(2, 0, plain));
    visit(k.narrow(2, turned, plain), keys_and_values.narrow(2, 0, plain));
    visit(v.narrow(2, 0, value), keys_and_values.narrow(2, plain, value));
  }
  /// Zeros what heads have not.
  void zero_rest(const Tensor& qkv) const {
    const int64_t of_keys = latent_.plain + latent_.rotary;
    if (of_keys < dim_) qkv.narrow(1, 0, 2).narrow(3, of_keys, dim_ - of_keys).zero_();
    if (latent_.value < dim_)
      qkv.select(1, 2).narrow(2, latent_.value, dim_ - latent_.value).zero_();
  }

 private:
  template <class Visit>
  void each_of_pairs(const Tensor& heads, const Tensor& made, const Visit& visit) const {
    const int64_t half = latent_.rotary / 2;
    if (!latent_.interleaved) return visit(heads.narrow(2, 0, 2 * half), made);
    const Tensor pairs = made.unflatten(2, {half, 2});
    visit(heads.narrow(2, 0, half), pairs.select(3, 0));
    visit(heads.narrow(2, half, half), pairs.select(3, 1));
  }

  const LatentSpec& latent_;
  int64_t heads_, dim_;
};

struct LatentHeadsFunction : Function<LatentHeadsFunction> {
  static Tensor forward(Context* ctx, const Tensor& queries, const Tensor& keys_and_values,
                        const Tensor& rotary, const LatentSpec* latent, int64_t dim) {
    ctx->saved_data["latent"] = reinterpret_cast<int64_t>(latent);
    ctx->saved_data["dim"] = dim;
    const int64_t heads = queries.size(1) / (latent->plain + latent->rotary);
    const HeadParts parts(*latent, heads, dim);
    const Tensor rows = at::empty({queries.size(0), 3 * heads * dim}, queries.options());
    const Tensor qkv = rows.view({queries.size(0), 3, heads, dim});
    parts.each(qkv, by_head(queries, heads), by_head(keys_and_values, heads),
               rotary.unsqueeze(1).expand({-1, heads, -1}),
               [](const Tensor& of_heads, const Tensor& made) { of_heads.copy_(made); });
    parts.zero_rest(qkv);
    return rows;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto* latent = reinterpret_cast<const LatentSpec*>(ctx->saved_data.at("latent").toInt());
    const int64_t dim = ctx->saved_data.at("dim").toInt(), rows = outputs[0].size(0);
    const int64_t heads = outputs[0].size(1) / (3 * dim);
    const Tensor dqkv = outputs[0].contiguous().view({rows, 3, heads, dim});
    const HeadParts parts(*latent, heads, dim);
    const auto made = [&](int64_t width) {
      return at::empty({rows, heads, width}, dqkv.options());
    };
    const Tensor dq = made(latent->plain + latent->rotary);
    const Tensor dkv = made(latent->plain + latent->value), of_each = made(latent->rotary);
    parts.each(dqkv, dq, dkv, of_each,
               [](const Tensor& of_heads, const Tensor& target) { target.copy_(of_heads); });
    return {dq.flatten(1), dkv.flatten(1), of_each.sum(1), {}, {}};
  }

 private:
  static Tensor by_head(const Tensor& x, int64_t heads) {
    return x.view({x.size(0), heads, x.size(1) / heads});
  }
};

struct FirstOfHeadsFunction : Function<FirstOfHeadsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, int64_t dim, int64_t count) {
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["count"] = count;
    return x.view({x.size(0), x.size(1) / dim, dim}).narrow(2, 0, count).flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const int64_t dim = ctx->saved_data.at("dim").toInt(),
                  count = ctx->saved_data.at("count").toInt();
    const Tensor& dy = outputs[0];
    const int64_t heads = dy.size(1) / count;
    const Tensor dx = at::zeros({dy.size(0), heads, dim}, dy.options());
    dx.narrow(2, 0, count).copy_(dy.reshape({dy.size(0), heads, count}));
    return {dx.flatten(1), {}, {}};
  }
};

}  // namespace

at::Tensor latent_heads(const at::Tensor& queries, const at::Tensor& keys_and_values,
                        const at::Tensor& rotary, const LatentSpec& latent, int64_t dim) {
  return LatentHeadsFunction::apply(queries, keys_and_values, rotary, &latent, dim);
}

at::Tensor queries_of_latents(const at::Tensor& q, const at::Tensor& weight,
                              const LatentSpec& latent) {
  const at::Tensor of_keys = weight.view({q.size(1), -1, latent.rank}).narrow(1, 0, latent.plain);
  const at::Tensor plain = q.narrow(2, latent.rotary, latent.plain).transpose(0, 1);
  return at::cat({q.narrow(2, 0, latent.rotary), at::bmm(plain, of_keys).transpose(0, 1)}, 2);
}

at::Tensor values_of_latents(const at::Tensor& attended, const at::Tensor& weight,
                             const LatentSpec& latent, const HeadShape& heads) {
  const at::Tensor of_values =
      weight.view({heads.query, -1, latent.rank}).narrow(1, latent.plain, latent.value);
  const int64_t width = latent.rotary + latent.rank;
  const at::Tensor latents = attended.view({attended.size(0), heads.query, width})
                                 .narrow(2, latent.rotary, latent.rank)
                                 .transpose(0, 1);
  const at::Tensor values = at::bmm(latents, of_values.transpose(1, 2)).transpose(0, 1);
  return at::constant_pad_nd(values, {0, heads.dim - latent.value}).flatten(1);
}

at::Tensor first_of_heads(const at::Tensor& x, int64_t dim, int64_t count) {
  return FirstOfHeadsFunction::apply(x, dim, count);
}

}  // namespace zea
