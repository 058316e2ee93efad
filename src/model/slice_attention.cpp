// SPDX-License-Identifier: Apache-2.0
// Attention over slices, whose sums and gradients add up: by our own kernels where they take the
// tensors (on the host), by FlashAttention-2 on devices in narrow types, else by libtorch's for
// dense attention; results are merged by their log-sum-exps (arXiv:2205.14135).
#include <algorithm>
#include <limits>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "kernels/tiled_attention.hpp"
#include "model/attention.hpp"

namespace zea {
namespace {

using at::Tensor;

// libtorch's dense attention on this device. Tensors are (batch, heads, length, head_dim) with any
// strides; no dim may be empty, which crashes libtorch on the host.

struct DenseInputs {
  Tensor q, k, v;
  bool causal = false;
  Tensor mask;            ///< undefined, or added to the scores: (batch, heads, queries, keys)
  ScoreSpec scores = {};  ///< no softcap: libtorch's kernels have none
};

struct DenseOutputs {
  Tensor out;
  Tensor lse;  ///< (batch, heads, queries)
};

/// The device's kernels need the rows of a log-sum-exp in multiples of this, and heads of a
/// multiple of so many bytes.
constexpr int64_t kLseRows = 32, kHeadBytes = 16;

std::optional<Tensor> optional_mask(const DenseInputs& in) {
  return in.mask.defined() ? std::optional<Tensor>(in.mask) : std::nullopt;
}

double scale_of(const DenseInputs& in) {
  ZEA_ASSERT(in.scores.softcap == 0);
  return in.scores.scale_of(in.q.size(3));
}

/// Returns what must be added to `count` to make it a multiple of `unit`.
int64_t missing_to(int64_t unit, int64_t count) {
  return (unit - count % unit) % unit;
}

/// Pads each head with zeros to a multiple of kHeadBytes.
Tensor whole_heads(const Tensor& x) {
  const int64_t missing = missing_to(kHeadBytes / x.element_size(), x.size(3));
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

Tensor padded_lse(const Tensor& lse) {
  return at::constant_pad_nd(lse, {0, missing_to(kLseRows, lse.size(2))},
                             std::numeric_limits<double>::infinity())
      .contiguous();
}

DenseOutputs dense_forward(const DenseInputs& in) {
  if (in.q.is_cpu()) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        in.q, in.k, in.v, 0.0, in.causal, optional_mask(in), scale_of(in));
    return {out, lse};
  }
  const auto result = at::_scaled_dot_product_efficient_attention(
      whole_heads(in.q), whole_heads(in.k), whole_heads(in.v), optional_mask(in), true, 0.0,
      in.causal, scale_of(in));
  return {std::get<0>(result).narrow(3, 0, in.q.size(3)),
          std::get<1>(result).narrow(2, 0, in.q.size(2))};
}

std::array<Tensor, 3> dense_backward(const Tensor& dout, const DenseInputs& in,
                                     const DenseOutputs& outputs) {
  if (in.q.is_cpu()) {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout, in.q, in.k, in.v, outputs.out, outputs.lse, 0.0, in.causal, optional_mask(in),
        scale_of(in));
    return {dq, dk, dv};
  }
  // For bf16 the kernel assumes that `out` has its forward's layout, (batch, rows, heads, dim).
  const Tensor out = whole_heads(outputs.out).transpose(1, 2).contiguous().transpose(1, 2);
  // Dropout is off, so the kernel reads neither seed nor offset.
  const Tensor unused = at::zeros({}, in.q.options().dtype(at::kLong));
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      whole_heads(dout), whole_heads(in.q), whole_heads(in.k), whole_heads(in.v), in.mask, out,
      padded_lse(outputs.lse), unused, unused, 0.0, {true, true, true, false}, in.causal,
      scale_of(in));
  const int64_t dim = in.q.size(3);
  return {dq.narrow(3, 0, dim), dk.narrow(3, 0, dim), dv.narrow(3, 0, dim)};
}

/// One stack on tensors of (tokens, heads, head_dim). Query heads that share a KV head are folded
/// into the queries, or into a batch of their own where the slice is causal, so keys are never
/// repeated.
class StackedSlices {
 public:
  StackedSlices(const SliceStack& stack, const AttentionInputs& in)
      : stack_(stack),
        size_(std::ssize(stack.slices)),
        kv_heads_(in.k.size(1)),
        group_(in.q.size(1) / kv_heads_) {}

  /// Returns a kernel's inputs.
  DenseInputs gather(const AttentionInputs& in) const {
    DenseInputs dense{
        gather_queries(in.q), gather_keys(in.k), gather_keys(in.v), is_masked(), {}, in.scores};
    if (stack_.padding.defined()) dense.mask = make_mask(dense.q);
    return dense;
  }

  /// Returns a tensor of queries as the kernel reads it; padding repeats some row.
  Tensor gather_queries(const Tensor& x) const {
    const AttentionSlice& first = stack_.slices.front();
    return fold_queries(is_view() ? x.narrow(0, first.query, first.queries).unsqueeze(0)
                                  : pick(x, stack_.query_rows));
  }
  /// The same with `filler` in the padding.
  Tensor gather_queries(const Tensor& x, double filler) const {
    if (!stack_.real.defined()) return gather_queries(x);
    Tensor all =
        at::full({size_ * stack_.queries, x.size(1), x.size(2)}, at::Scalar(filler), x.options());
    all.index_copy_(0, stack_.real, x.index_select(0, stack_.real_rows));
    return fold_queries(all.unflatten(0, {size_, -1}));
  }
  /// Returns a kernel's outputs for merging.
  AttentionPart part_of(const DenseOutputs& outputs) const {
    return {split_queries(outputs.out), split_queries(outputs.lse.unsqueeze(-1)).squeeze(-1),
            stack_.real, stack_.real_rows, stack_.slices.front().query};
  }

  /// Adds a kernel's gradient of queries to x[query], and one of keys to x[key].
  void add_queries(const Tensor& x, const Tensor& gradient) const {
    const AttentionSlice& first = stack_.slices.front();
    add(x, {first.query, first.queries}, stack_.query_rows, split_queries(gradient).flatten(2, 3));
  }
  void add_keys(const Tensor& x, const Tensor& gradient) const {
    const AttentionSlice& first = stack_.slices.front();
    add(x, {first.key, first.keys}, stack_.key_rows, unfold_keys(gradient));
  }

 private:
  bool is_masked() const { return stack_.mask != SliceMask::None; }
  bool is_view() const { return !stack_.query_rows.defined(); }

  /// x (tokens, ...) at `rows` -> (slices, rows of each, ...).
  Tensor pick(const Tensor& x, const Tensor& rows) const {
    return x.index_select(0, rows).unflatten(0, {size_, -1});
  }
  void add(const Tensor& x, std::pair<int64_t, int64_t> range, const Tensor& rows,
           const Tensor& gradient) const {
    const Tensor values = gradient.flatten(0, 1);
    if (is_view())
      x.narrow(0, range.first, range.second).add_(values);
    else
      x.index_add_(0, rows, values.to(x.scalar_type()));
  }

  /// (size, queries, heads, dim) -> (size, heads, queries, dim); with G query heads on a KV head
  /// (size, kv_heads, queries * G, dim), masked (size * kv_heads, G, queries, dim).
  Tensor fold_queries(const Tensor& x) const {
    if (group_ == 1) return x.transpose(1, 2);
    const Tensor groups = x.unflatten(2, {kv_heads_, group_});
    if (is_masked()) return groups.permute({0, 2, 3, 1, 4}).flatten(0, 1);
    return groups.permute({0, 2, 1, 3, 4}).flatten(2, 3);
  }

  /// A kernel's queries as a view (size, queries, kv_heads, G, dim).
  Tensor split_queries(const Tensor& x) const {
    if (group_ == 1) return x.transpose(1, 2).unsqueeze(3);
    if (is_masked()) return x.unflatten(0, {size_, kv_heads_}).permute({0, 3, 1, 2, 4});
    return x.unflatten(2, {stack_.queries, group_}).permute({0, 2, 1, 3, 4});
  }

  /// (size, keys, kv_heads, dim) -> (size, kv_heads, keys, dim), masked with G query heads on a KV
  /// head (size * kv_heads, G, keys, dim) without copies of a head.
  Tensor fold_keys(const Tensor& x) const {
    const Tensor keys = x.transpose(1, 2);
    if (group_ == 1 || !is_masked()) return keys;
    return keys.flatten(0, 1).unsqueeze(1).expand({-1, group_, -1, -1});
  }

  Tensor unfold_keys(const Tensor& x) const {
    if (group_ == 1 || !is_masked()) return x.transpose(1, 2);
    return x.sum(1).unflatten(0, {size_, kv_heads_}).transpose(1, 2);
  }

  /// (size, heads, queries, keys).
  Tensor make_mask(const Tensor& like) const {
    return stack_.padding.to(like.scalar_type())
        .narrow(3, 0, stack_.keys)
        .expand({like.size(0), like.size(1), like.size(2), stack_.keys});
  }

  Tensor gather_keys(const Tensor& x) const {
    const AttentionSlice& first = stack_.slices.front();
    return fold_keys(is_view() ? x.narrow(0, first.key, first.keys).unsqueeze(0)
                               : pick(x, stack_.key_rows));
  }

  const SliceStack& stack_;
  int64_t size_, kv_heads_, group_;
};

/// Adds the keys of the mask's slices to `sums`.
void add_dense_attention(const AttentionSums& sums, const AttentionInputs& in,
                         const AttentionMask& mask) {
  for (const SliceStack& stack : mask.stacks(in.q.device())) {
    const StackedSlices stacked(stack, in);
    const DenseOutputs outputs = dense_forward(stacked.gather(in));  // its inputs are gone by now
    merge_attention(sums, stacked.part_of(outputs));
  }
}

/// Adds the gradients through the mask's slices, given the sums over all keys that the queries see.
void add_dense_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                         const Tensor& dout, const AttentionSums& sums, const AttentionMask& mask) {
  const Tensor lse = sums.lse.unsqueeze(-1);
  for (const SliceStack& stack : mask.stacks(in.q.device())) {
    const StackedSlices stacked(stack, in);
    // Padding has no gradient, and a weight of exp(score - inf) = 0 for every key.
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto [dq, dk, dv] = dense_backward(
        stacked.gather_queries(dout, 0), stacked.gather(in),
        {stacked.gather_queries(sums.out), stacked.gather_queries(lse, kInfinity).squeeze(-1)});
    stacked.add_queries(gradients.dq, dq);
    stacked.add_keys(gradients.dk, dk);
    stacked.add_keys(gradients.dv, dv);
  }
}

// FlashAttention-2 (arXiv:2307.08691) on ragged segments: few calls, whatever samples the rows
// hold.

bool takes_ragged_slices(const AttentionInputs& in) {
  const at::ScalarType type = in.q.scalar_type();
  return !in.q.is_cpu() && (type == at::kBFloat16 || type == at::kHalf) && in.scores.softcap == 0 &&
         takes_ragged_heads(in.q.size(2));
}

/// One call: the queries, keys and values of its segments.
class RaggedPart {
 public:
  RaggedPart(const RaggedSlices& slices, const AttentionInputs& in)
      : slices_(slices),
        q_(queries(in.q)),
        k_(in.k.index_select(0, slices.key_rows)),
        v_(in.v.index_select(0, slices.key_rows)),
        scale_(in.scores.scale_of(in.q.size(2))) {}

  AttentionPart attend() const {
    const auto [out, lse, seed, offset, no_mask] = at::_flash_attention_forward(
        q_, k_, v_, slices_.query_bounds, slices_.key_bounds, most_queries(), slices_.longest_keys,
        0.0, slices_.is_causal, false, scale_);
    const std::vector<int64_t> heads{k_.size(1), q_.size(1) / k_.size(1)};
    return {out.unsqueeze(0).unflatten(2, heads),
            lse.t().unsqueeze(0).unflatten(2, heads),
            {},
            slices_.query_rows,
            0};
  }

  /// Adds the gradients, given those of the outputs and the sums over all keys.
  void add_gradients(const AttentionGradients& gradients, const Tensor& dout,
                     const AttentionSums& sums) const {
    const Tensor out = queries(sums.out).to(q_.scalar_type());
    const Tensor lse = queries(sums.lse).t().contiguous();
    const Tensor no_seed = at::empty({2}, q_.options().dtype(at::kUInt64));  // without dropout
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        queries(dout), q_, k_, v_, out, lse, slices_.query_bounds, slices_.key_bounds,
        most_queries(), slices_.longest_keys, 0.0, slices_.is_causal, no_seed, no_seed, scale_);
    add(gradients.dq, slices_.query_rows, dq);
    add(gradients.dk, slices_.key_rows, dk);
    add(gradients.dv, slices_.key_rows, dv);
  }

 private:
  Tensor queries(const Tensor& x) const { return x.index_select(0, slices_.query_rows); }
  /// Where no segment has more than one query, the library takes another way, whose log-sum-exps of
  /// several heads on a KV head are in another order.
  int64_t most_queries() const { return std::max<int64_t>(2, slices_.longest_queries); }
  static void add(const Tensor& x, const Tensor& rows, const Tensor& gradient) {
    x.index_add_(0, rows, gradient.to(x.scalar_type()));
  }

  const RaggedSlices& slices_;
  Tensor q_, k_, v_;
  double scale_;
};

/// Adds the keys of the mask's slices to `sums`, by libraries' kernels.
void add_by_library(const AttentionSums& sums, const AttentionInputs& in,
                    const AttentionMask& mask) {
  if (!takes_ragged_slices(in)) return add_dense_attention(sums, in, mask);
  for (const RaggedSlices& slices : mask.ragged(in.q.device()))
    merge_attention(sums, RaggedPart(slices, in).attend());
}

void add_gradients_by_library(const AttentionGradients& gradients, const AttentionInputs& in,
                              const Tensor& dout, const AttentionSums& sums,
                              const AttentionMask& mask) {
  if (!takes_ragged_slices(in)) return add_dense_gradients(gradients, in, dout, sums, mask);
  for (const RaggedSlices& slices : mask.ragged(in.q.device()))
    RaggedPart(slices, in).add_gradients(gradients, dout, sums);
}

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

at::ScalarType wide_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::TensorOptions wide_options(const Tensor& x) {
  return x.options().dtype(wide_type(x));
}

/// The log-sum-exps of queries that have seen no key, (queries, heads).
Tensor no_keys(const Tensor& q) {
  return at::full({q.size(0), q.size(1)}, kNoKeys, wide_options(q));
}

}  // namespace

AttentionSums no_attention(const Tensor& q) {
  const Tensor lse = no_keys(q);
  return {at::zeros(q.sizes(), lse.options()), lse};
}

void add_attention(const AttentionSums& sums, const AttentionInputs& in,
                   const AttentionMask& mask) {
  if (takes_tiled_attention(in.q))
    tiled_attention_forward(in, mask.slices(), sums, AttentionResult::Added);
  else
    add_by_library(sums, in, mask);
}

void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const Tensor& dout, const AttentionSums& sums,
                             const AttentionMask& mask) {
  if (takes_tiled_attention(in.q))
    tiled_attention_backward(in, dout, sums, mask.slices(), gradients, AttentionResult::Added);
  else
    add_gradients_by_library(gradients, in, dout, sums, mask);
}

AttentionSums attend_by_group(const Tensor& q, const Tensor& kv, std::vector<AttentionSlice> slices,
                              const ScoreSpec& scores) {
  const int64_t kv_heads = kv.size(1) / 2, group = q.size(1) / kv_heads;
  for (AttentionSlice& slice : slices) {
    ZEA_ASSERT(slice.mask == SliceMask::None);
    slice.query *= group;
    slice.queries *= group;
  }
  const Tensor grouped = q.unflatten(1, {kv_heads, group}).transpose(1, 2).flatten(0, 1);
  const AttentionSums sums = no_attention(grouped);
  if (!slices.empty())
    add_attention(sums,
                  {grouped, kv.narrow(1, 0, kv_heads), kv.narrow(1, kv_heads, kv_heads), scores},
                  AttentionMask(std::move(slices)));
  const auto by_head = [&](const Tensor& x) {
    return x.unflatten(0, {q.size(0), group}).transpose(1, 2).flatten(1, 2);
  };
  return {by_head(sums.out), by_head(sums.lse)};
}

AttentionSums unwritten_sums(const Tensor& q) {
  return {at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(1)}, wide_options(q))};
}

AttentionSums unwritten_wide_sums(const Tensor& q) {
  return {at::empty(q.sizes(), wide_options(q)),
          at::empty({q.size(0), q.size(1)}, wide_options(q))};
}

void write_attention(const AttentionSums& sums, const AttentionInputs& in,
                     const AttentionMask& mask) {
  if (takes_tiled_attention(in.q))
    return tiled_attention_forward(in, mask.slices(), sums, AttentionResult::Written);
  const bool is_wide = sums.out.scalar_type() == wide_type(sums.out);
  const AttentionSums wide{is_wide ? sums.out : at::empty(in.q.sizes(), wide_options(in.q)),
                           sums.lse};
  wide.out.zero_();
  wide.lse.fill_(kNoKeys);
  add_by_library(wide, in, mask);
  if (!is_wide) sums.out.copy_(wide.out);
}

void write_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                               const Tensor& dout, const AttentionSums& sums,
                               const AttentionMask& mask) {
  if (takes_tiled_attention(in.q))
    return tiled_attention_backward(in, dout, sums, mask.slices(), gradients,
                                    AttentionResult::Written);
  const auto zeros = [](const Tensor& x) {
    return x.scalar_type() == wide_type(x) ? x.zero_() : at::zeros(x.sizes(), wide_options(x));
  };
  const AttentionGradients wide{zeros(gradients.dq), zeros(gradients.dk), zeros(gradients.dv)};
  add_gradients_by_library(wide, in, dout, sums, mask);
  if (wide.dq.is_same(gradients.dq)) return;
  gradients.dq.copy_(wide.dq);
  gradients.dk.copy_(wide.dk);
  gradients.dv.copy_(wide.dv);
}

}  // namespace zea
