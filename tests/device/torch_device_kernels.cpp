// SPDX-License-Identifier: Apache-2.0
// Operations that libtorch has only for devices, with the types and shapes that they take there.
#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <torch/library.h>

#include <cmath>

#include "device/torch_device.hpp"

namespace zea::testing {
namespace {

constexpr int64_t kRows = 32;  // logarithms of sums come and go in rows padded to this

double scale_of(const at::Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

bool is_narrow(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

/// (batch, heads, rows) as CUDA's kernels have it.
at::Tensor in_whole_rows(const at::Tensor& lse) {
  const int64_t missing = (kRows - lse.size(2) % kRows) % kRows;
  return at::constant_pad_nd(lse, {0, missing}, std::numeric_limits<double>::infinity());
}

/// CUDA's kernels take each head of each row, and each row of a bias, where 16 bytes begin.
void expect_aligned(const at::Tensor& x) {
  for (int64_t dim = 0; dim < 3; ++dim)
    TORCH_CHECK(x.size(dim) == 1 || x.stride(dim) * x.element_size() % 16 == 0,
                "(batch, heads, rows, dim) of ", x.sizes(), " at strides ", x.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0);
}

/// Scores and their logarithms of sums are fp32 where the rest is narrower.
at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

/// The number of tokens seen before a token, and after it; less than 0: all.
struct Seen {
  int64_t before = -1, behind = -1;

  explicit Seen(bool is_causal, std::optional<int64_t> left = {}, std::optional<int64_t> right = {})
      : before(left.value_or(-1)), behind(is_causal ? 0 : right.value_or(-1)) {}
};

/// (batch, heads, queries, keys), biased and masked.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k,
                     const std::optional<at::Tensor>& bias, const Seen& seen, double scale) {
  at::Tensor scores = at::matmul(q * scale, k.transpose(2, 3));
  if (bias && bias->defined()) scores = scores + *bias;
  at::Tensor mask = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool));
  if (seen.behind >= 0) mask = mask.tril(seen.behind);
  if (seen.before >= 0) mask = mask.triu(-seen.before);
  return scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/// FLOPs of the two GEMMs of attention.
double attention_flops(const at::Tensor& q, const at::Tensor& k, bool is_causal) {
  const auto queries = static_cast<double>(q.size(2)), keys = static_cast<double>(k.size(2));
  const double pairs = is_causal ? queries * (queries + 1) / 2 : queries * keys;
  return 4.0 * pairs * static_cast<double>(q.size(0) * q.size(1) * q.size(3));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& bias, bool, double dropout, bool is_causal,
    std::optional<double> scale) {
  TORCH_CHECK(dropout == 0);
  for (const at::Tensor& x : {q, k, v}) expect_aligned(x);
  if (bias && bias->defined()) expect_aligned(*bias);
  const OneLaunch one("attention", attention_flops(q, k, is_causal));
  const at::Tensor scores =
      scores_of(widened(q), widened(k), bias, Seen(is_causal), scale_of(q, scale));
  const at::Tensor lse = at::logsumexp(scores, {-1});
  // It lies as CUDA's kernel writes it: rows by heads.
  const at::Tensor out = at::matmul(at::exp(scores - lse.unsqueeze(-1)), widened(v))
                             .to(q.scalar_type())
                             .transpose(1, 2)
                             .contiguous()
                             .transpose(1, 2);
  const at::Tensor unused = at::zeros({}, q.options().dtype(at::kLong));
  return {out, in_whole_rows(lse), unused, unused};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& lse, const at::Tensor&,
    const at::Tensor&, double, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  const OneLaunch one("attention backward", 2 * attention_flops(q, k, is_causal));
  for (const at::Tensor& x : {q, k, v, dout, out}) expect_aligned(x);
  if (bias.defined()) expect_aligned(bias);
  TORCH_CHECK(lse.size(2) % kRows == 0, "logarithms of sums in rows of ", lse.size(2));
  TORCH_CHECK(lse.scalar_type() == widened(q).scalar_type());
  // CUDA's kernel gets no stride of the rows of `out`, which it reads itself in narrow types.
  TORCH_CHECK(!is_narrow(q) || out.size(2) == 1 ||
                  (out.stride(2) == out.size(1) * out.size(3) && out.stride(1) == out.size(3)),
              "rows of the attention's output at strides ", out.strides());
  const double by = scale_of(q, scale);
  const at::Tensor queries = widened(q), keys = widened(k), d = widened(dout);
  const at::Tensor scores = scores_of(queries, keys, bias, Seen(is_causal), by);
  const at::Tensor p = at::exp(scores - lse.narrow(2, 0, q.size(2)).unsqueeze(-1));
  const at::Tensor delta = (d * widened(out)).sum(-1, true);
  const at::Tensor ds = p * (at::matmul(d, widened(v).transpose(2, 3)) - delta);
  const auto narrow = [&](const at::Tensor& x) { return x.to(q.scalar_type()); };
  return {narrow(at::matmul(ds, keys) * by), narrow(at::matmul(ds.transpose(2, 3), queries) * by),
          narrow(at::matmul(p.transpose(2, 3), d)), at::Tensor()};
}

/// As CUDA's library chooses on GPUs for which it prefers cuDNN.
int64_t chosen(const at::Tensor& q, const at::Tensor& k, const at::Tensor&,
               const std::optional<at::Tensor>&, double, bool, std::optional<double>,
               bool takes_groups) {
  TORCH_CHECK(takes_groups == (k.size(1) != q.size(1)));
  const bool is_cudnns = is_narrow(q) && q.size(3) % 8 == 0 && q.size(3) <= 256 && k.size(2) > 1;
  return static_cast<int64_t>(is_cudnns ? at::SDPBackend::cudnn_attention : at::SDPBackend::math);
}

/// Returns the keys repeated for each query head.
at::Tensor repeated(const at::Tensor& keys, const at::Tensor& q) {
  return keys.repeat_interleave(q.size(1) / keys.size(1), 1);
}

using Even = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                        at::Tensor, at::Tensor, at::Tensor>;

Even even_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>&, const std::optional<at::Tensor>& bounds,
                  const std::optional<at::Tensor>&, c10::SymInt queries, c10::SymInt keys, bool,
                  double dropout, bool is_causal, bool, std::optional<double> scale) {
  TORCH_CHECK(!bounds || !bounds->defined(), "backward of bounds is broken in libtorch 2.11");
  const auto [out, lse, seed, offset] =
      forward(q, repeated(k, q), repeated(v, q), {}, true, dropout, is_causal, scale);
  return {out,     lse.narrow(2, 0, q.size(2)).unsqueeze(3).contiguous(),
          {},      {},
          queries, keys,
          seed,    offset,
          {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> even_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& seed, const at::Tensor& offset,
    const at::Tensor& bias, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(lse.dim() == 4 && lse.size(3) == 1 && lse.is_contiguous());
  const auto [dq, dk, dv, none] =
      backward(dout, q, repeated(k, q), repeated(v, q), bias, out, in_whole_rows(lse.squeeze(3)),
               seed, offset, dropout, {true, true, true, false}, is_causal, scale);
  const auto summed = [&](const at::Tensor& x) { return x.unflatten(1, {k.size(1), -1}).sum(2); };
  return {dq, summed(dk), summed(dv)};
}

// Attention over rows of segments: (tokens, heads, dim), with bounds of segments as int32. These
// are the CPU's, which lacks such an operation, so that the bounds are read when a graph is
// launched, not before.

struct Ragged {
  at::Tensor q, k, v;  ///< (heads, tokens, dim), in fp32; keys repeated for their queries' heads
  std::vector<int64_t> bounds, key_bounds;
  int64_t repeats;

  Ragged(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
         const at::Tensor& starts, const at::Tensor& key_starts, int64_t longest,
         int64_t longest_keys)
      : bounds(bounds_of(starts, queries, longest)),
        key_bounds(bounds_of(key_starts, keys, longest_keys)) {
    for (const at::Tensor& x : {queries, keys, values})
      TORCH_CHECK(x.stride(2) == 1 && x.size(2) % 8 == 0 && x.size(2) <= 256);
    TORCH_CHECK(is_narrow(queries));
    TORCH_CHECK(bounds.size() == key_bounds.size());
    repeats = queries.size(1) / keys.size(1);
    q = queries.transpose(0, 1).to(at::kFloat);
    k = keys.transpose(0, 1).to(at::kFloat).repeat_interleave(repeats, 0);
    v = values.transpose(0, 1).to(at::kFloat).repeat_interleave(repeats, 0);
  }

  /// (1, heads, queries of segment i, dim)
  at::Tensor part(const at::Tensor& x, size_t i) const { return part(x, bounds, i); }
  at::Tensor key_part(const at::Tensor& x, size_t i) const { return part(x, key_bounds, i); }

 private:
  static std::vector<int64_t> bounds_of(const at::Tensor& starts, const at::Tensor& rows,
                                        int64_t longest) {
    TORCH_CHECK(starts.scalar_type() == at::kInt && starts.is_contiguous());
    TORCH_CHECK(starts.device() == rows.device());
    std::vector<int64_t> all;
    for (int64_t i = 0; i < starts.numel(); ++i) all.push_back(starts.data_ptr<int32_t>()[i]);
    for (size_t i = 1; i < all.size(); ++i) TORCH_CHECK(all[i] - all[i - 1] <= longest);
    TORCH_CHECK(all.back() == rows.size(0));
    return all;
  }
  static at::Tensor part(const at::Tensor& x, const std::vector<int64_t>& of, size_t i) {
    return x.narrow(1, of[i], of[i + 1] - of[i]).unsqueeze(0);
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> ragged_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& starts, const std::optional<at::Tensor>& key_starts,
    int64_t longest, int64_t longest_keys, double dropout, bool is_causal, bool,
    std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  TORCH_CHECK(dropout == 0);
  const Ragged row(q, k, v, *starts, *key_starts, longest, longest_keys);
  const Seen seen(is_causal, left, right);
  std::vector<at::Tensor> outs, lses;
  for (size_t i = 0; i + 1 < row.bounds.size(); ++i) {
    const at::Tensor queries = row.part(row.q, i);
    const at::Tensor scores =
        scores_of(queries, row.key_part(row.k, i), {}, seen, scale_of(queries, scale));
    lses.push_back(at::logsumexp(scores, {-1})[0]);
    outs.push_back(
        at::matmul(at::exp(scores[0] - lses.back().unsqueeze(-1)), row.key_part(row.v, i)[0]));
  }
  const at::Tensor out = at::cat(outs, 1).transpose(0, 1).contiguous().to(q.scalar_type());
  const at::Tensor unused = at::zeros({}, q.options().dtype(at::kLong));
  return {out, at::cat(lses, 1), unused, unused, at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ragged_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& starts,
    const at::Tensor& key_starts, int64_t longest, int64_t longest_keys, double, bool is_causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right) {
  TORCH_CHECK(dout.is_contiguous());
  const Ragged row(q, k, v, starts, key_starts, longest, longest_keys);
  const Seen seen(is_causal, left, right);
  const at::Tensor wide_dout = dout.transpose(0, 1).to(at::kFloat);
  const at::Tensor wide_out = out.transpose(0, 1).to(at::kFloat);
  std::vector<at::Tensor> dqs, dks, dvs;
  for (size_t i = 0; i + 1 < row.bounds.size(); ++i) {
    const at::Tensor queries = row.part(row.q, i), keys = row.key_part(row.k, i);
    const double by = scale_of(queries, scale);
    const at::Tensor scores = scores_of(queries, keys, {}, seen, by);
    const at::Tensor p = at::exp(scores - row.part(lse, i).unsqueeze(-1));
    const at::Tensor of = row.part(wide_dout, i);
    const at::Tensor delta = (of * row.part(wide_out, i)).sum(-1, true);
    const at::Tensor ds = p * (at::matmul(of, row.key_part(row.v, i).transpose(2, 3)) - delta);
    dqs.push_back((at::matmul(ds, keys) * by)[0]);
    dks.push_back((at::matmul(ds.transpose(2, 3), queries) * by)[0]);
    dvs.push_back(at::matmul(p.transpose(2, 3), of)[0]);
  }
  const auto summed = [&](const std::vector<at::Tensor>& parts, int64_t repeats) {
    return at::cat(parts, 1).unflatten(0, {-1, repeats}).sum(1).transpose(0, 1).to(q.scalar_type());
  };
  return {summed(dqs, 1), summed(dks, row.repeats), summed(dvs, row.repeats)};
}

/// Products of narrow matrices that are added to wide sums as they are made. Types are checked as
/// libtorch checks them from 2.10 on.
at::Tensor& add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b,
                        at::ScalarType type, const at::Scalar& beta, const at::Scalar& alpha,
                        at::Tensor& out) {
  const OneLaunch one("addmm");
  const at::ScalarType narrow = a.scalar_type();
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0));
  TORCH_CHECK(narrow == b.scalar_type(), "mat1 and mat2 must have the same dtype");
  const bool is_wider = type == at::kFloat && (narrow == at::kHalf || narrow == at::kBFloat16);
  TORCH_CHECK(type == narrow || is_wider,
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  TORCH_CHECK(type == out.scalar_type(), "out_dtype must be the same as the dtype of out");
  TORCH_CHECK(type == sum.scalar_type() || narrow == sum.scalar_type(),
              "self dtype must match either out_dtype or mat1 dtype");
  out.copy_(at::addmm(sum, a.to(type), b.to(type), beta, alpha));
  return out;
}

/// Products of the rows of each expert: a (rows, k) with b (experts, k, n), or a (m, rows) with
/// b (rows, n). The library takes bf16 whose rows are whole packs, and leaves rows after those of
/// the last expert as they are: here NaN.
at::Tensor grouped_product(const at::Tensor& a, const at::Tensor& b,
                           const std::optional<at::Tensor>& ends, const std::optional<at::Tensor>&,
                           std::optional<at::ScalarType>) {
  const OneLaunch one("_grouped_mm");
  TORCH_CHECK(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16);
  for (const at::Tensor& x : {a, b})
    TORCH_CHECK(std::max(x.stride(-1), x.stride(-2)) % 8 == 0, "strides must be whole packs");
  const at::Tensor on_host = ends->cpu();
  const int64_t experts = on_host.numel();
  const bool adds_rows = b.dim() == 2;
  const at::Tensor made = adds_rows ? at::empty({experts, a.size(0), b.size(1)}, a.options())
                                    : at::full({a.size(0), b.size(2)}, NAN, a.options());
  for (int64_t e = 0, begin = 0; e < experts; ++e) {
    const int64_t rows = on_host[e].item<int64_t>() - begin;
    if (adds_rows)
      made[e].copy_(at::mm(a.narrow(1, begin, rows), b.narrow(0, begin, rows)));
    else
      made.narrow(0, begin, rows).copy_(at::mm(a.narrow(0, begin, rows), b[e]));
    begin += rows;
  }
  return made;
}

// Many tensors in one launch.

void zero_each(at::TensorList tensors) {
  const OneLaunch one("_foreach_zero_");
  for (const at::Tensor& tensor : tensors) tensor.zero_();
}

/// All tensors of a list have one type, as in the library's fast path.
void copy_each(at::TensorList tensors, at::TensorList sources, bool) {
  const OneLaunch one("_foreach_copy_");
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].scalar_type() == tensors[0].scalar_type());
    TORCH_CHECK(sources[i].scalar_type() == sources[0].scalar_type());
    tensors[i].copy_(sources[i]);
  }
}

/// Likewise, and of the same strides.
void add_each(at::TensorList tensors, at::TensorList others, const at::Scalar& alpha) {
  const OneLaunch one("_foreach_add_");
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].scalar_type() == others[i].scalar_type());
    TORCH_CHECK(tensors[i].strides() == others[i].strides());
    tensors[i].add_(others[i], alpha);
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_foreach_add_.List", &add_each);
  m.impl("_foreach_zero_", &zero_each);
  m.impl("_foreach_copy_", &copy_each);
  m.impl("addmm.dtype_out", &add_product);
  m.impl("_cudnn_attention_backward", &even_backward);
  m.impl("_grouped_mm", &grouped_product);
  m.impl("_cudnn_attention_forward", &even_forward);
  m.impl("_fused_sdp_choice", &chosen);
  m.impl("_scaled_dot_product_efficient_attention", &forward);
  m.impl("_scaled_dot_product_efficient_attention_backward", &backward);
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_flash_attention_forward", &ragged_forward);
  m.impl("_flash_attention_backward", &ragged_backward);
}

}  // namespace
}  // namespace zea::testing
