// SPDX-License-Identifier: Apache-2.0
// Attention with relative positions in a window, as conformers have it. Blocks of queries are
// multiplied with the keys around each block; scores outside the window are left out. Backward
// computes the scores again.
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

#include "core/kernel_sizes.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// transformers scales keys by this.
const double kKeyScale = std::log1p(std::exp(1.0)) / std::log(2.0);

/// The rows of one call as blocks of queries and the rows around them.
class Blocks {
 public:
  Blocks(int64_t rows, const RelativeSpec& spec)
      : rows_(rows),
        left_(spec.left),
        right_(spec.right),
        count_((rows + kRelativeBlock - 1) / kRelativeBlock) {}

  int64_t around() const { return kRelativeBlock + left_ + right_; }

  /// x (rows, heads, dim) -> (blocks, heads, block, dim).
  Tensor queries(const Tensor& x) const {
    const Tensor padded = at::constant_pad_nd(x, {0, 0, 0, 0, 0, padding()});
    return padded.view({count_, kRelativeBlock, x.size(1), x.size(2)}).transpose(1, 2);
  }
  /// (blocks, heads, block, dim) -> (rows, heads, dim).
  Tensor rows(const Tensor& of_blocks) const {
    const Tensor x = of_blocks.transpose(1, 2).flatten(0, 1);
    return padding() == 0 ? x : x.narrow(0, 0, rows_).clone();
  }
  /// x (rows, heads, dim) -> (blocks, heads, dim, around).
  Tensor keys(const Tensor& x) const {
    const Tensor padded = at::constant_pad_nd(x, {0, 0, 0, 0, left_, padding() + right_});
    return padded.unfold(0, around(), kRelativeBlock);
  }
  /// The sum over blocks: (blocks, heads, dim, around) -> (rows, heads, dim).
  Tensor summed_keys(const Tensor& of_blocks) const {
    const Tensor all = at::unfold_backward(
        of_blocks, {left_ + rows_ + padding() + right_, of_blocks.size(1), of_blocks.size(2)}, 0,
        around(), kRelativeBlock);
    return all.narrow(0, left_, rows_);
  }
  /// Moves the scores of distances (blocks, heads, block, left + 1 + right) to the keys at these
  /// distances: (blocks, heads, block, around).
  Tensor shifted(const Tensor& of_distances) const {
    const int64_t width = around();
    const Tensor padded =
        at::constant_pad_nd(of_distances, {0, width + 1 - of_distances.size(3)}).flatten(2);
    return padded.narrow(2, 0, kRelativeBlock * width)
        .unflatten(2, at::IntArrayRef{kRelativeBlock, width});
  }
  /// The opposite: of the keys at these distances.
  Tensor unshifted(const Tensor& of_keys) const {
    const Tensor padded = at::constant_pad_nd(of_keys.flatten(2), {0, kRelativeBlock});
    return padded.unflatten(2, at::IntArrayRef{kRelativeBlock, around() + 1})
        .narrow(3, 0, left_ + 1 + right_);
  }
  /// Returns whether a query does not attend to a key: (blocks, 1, block, around). `positions`
  /// (rows) int64: of rows in their clips.
  Tensor hidden_keys(const Tensor& positions) const {
    const Tensor starts = at::arange(rows_, positions.options()) - positions;
    const Tensor queries =
        at::constant_pad_nd(starts, {0, padding()}, -1).view({count_, 1, kRelativeBlock, 1});
    const Tensor keys = at::constant_pad_nd(starts, {left_, padding() + right_}, -2)
                            .unfold(0, around(), kRelativeBlock)
                            .view({count_, 1, 1, around()});
    const Tensor distance = at::arange(around(), positions.options()) -
                            at::arange(kRelativeBlock, positions.options()).unsqueeze(1);
    return (queries != keys).logical_or_(distance < 0).logical_or_(distance > left_ + right_);
  }

 private:
  int64_t padding() const { return count_ * kRelativeBlock - rows_; }

  const int64_t rows_, left_, right_, count_;
};

/// The values that forward and backward of one call compute from its inputs.
struct Scored {
  Tensor queries;    ///< (blocks, heads, block, dim), scaled
  Tensor keys;       ///< (blocks, heads, dim, around), scaled
  Tensor values;     ///< likewise, not scaled
  Tensor distances;  ///< (heads, dim, left + 1 + right)
  Tensor tanh;       ///< (blocks, heads, block, around)
  Tensor shares;     ///< likewise: the softmax of scores
};

/// The factor of each coordinate of queries.
Tensor query_factors(const Tensor& scale, const ScoreSpec& scores) {
  return at::softplus(scale) * scores.scale;
}

Scored scored(const Tensor& qkv, const Tensor& distances, const Tensor& positions,
              const Tensor& scale, const AttentionSpec& spec, const Blocks& blocks) {
  const int64_t heads = qkv.size(1) / (3 * spec.heads.dim);
  const Tensor all = wide(qkv).view({qkv.size(0), 3, heads, spec.heads.dim});
  Scored made;
  made.queries = blocks.queries(all.select(1, 0)) * query_factors(wide(scale), spec.scores);
  made.keys = blocks.keys(all.select(1, 1)) * kKeyScale;
  made.values = blocks.keys(all.select(1, 2));
  made.distances = wide(distances).view({-1, heads, spec.heads.dim}).permute({1, 2, 0});
  Tensor scores = at::matmul(made.queries, made.keys);
  scores.add_(blocks.shifted(at::matmul(made.queries, made.distances)));
  made.tanh = scores.div_(spec.scores.softcap).tanh_();
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  made.shares = (made.tanh * spec.scores.softcap)
                    .masked_fill_(blocks.hidden_keys(positions), kLowest)
                    .softmax(-1);
  return made;
}

void save(Context* ctx, const AttentionSpec& spec, Parameter* scale) {
  remember(ctx, {scale});
  ctx->saved_data["sizes"] = std::vector<int64_t>{spec.heads.dim, spec.relative->left,
                                                  spec.relative->right, spec.relative->first};
  ctx->saved_data["scale"] = spec.scores.scale;
  ctx->saved_data["softcap"] = spec.scores.softcap;
}

AttentionSpec saved_spec(Context* ctx) {
  const std::vector<int64_t> sizes = ctx->saved_data.at("sizes").toIntVector();
  AttentionSpec spec;
  spec.heads.dim = sizes[0];
  spec.relative = RelativeSpec{sizes[1], sizes[2], sizes[3]};
  spec.scores = {ctx->saved_data.at("scale").toDouble(), ctx->saved_data.at("softcap").toDouble()};
  return spec;
}

struct RelativeAttentionFunction : Function<RelativeAttentionFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const Tensor& distances,
                        const Tensor& anchor, const Tensor& positions, Parameter* scale,
                        const AttentionSpec& spec) {
    (void)anchor;
    save(ctx, spec, scale);
    ctx->save_for_backward({qkv, distances, positions});
    const Blocks blocks(qkv.size(0), *spec.relative);
    const Scored made = scored(qkv, distances, positions, scale->value(), spec, blocks);
    const Tensor out = blocks.rows(at::matmul(made.shares, made.values.transpose(2, 3)));
    return out.flatten(1).to(qkv.scalar_type());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &qkv = saved[0], &distances = saved[1];
    const AttentionSpec spec = saved_spec(ctx);
    Parameter* scale = recall(ctx, 0);
    const Blocks blocks(qkv.size(0), *spec.relative);
    Scored made = scored(qkv, distances, saved[2], scale->value(), spec, blocks);
    const int64_t heads = made.queries.size(1);
    Tensor dout = blocks.queries(wide(outputs[0]).view({-1, heads, spec.heads.dim}));
    const Tensor dvalues = at::matmul(dout.transpose(2, 3), made.shares);
    Tensor dscores = at::matmul(dout, made.values);
    dscores.sub_((dscores * made.shares).sum(-1, true)).mul_(made.shares);
    for (Tensor* read : {&made.shares, &made.values, &dout}) read->reset();
    dscores.mul_(made.tanh.square_().neg_().add_(1));  // the cap's slope
    made.tanh.reset();
    const Tensor of_distances = blocks.unshifted(dscores).contiguous();
    Tensor dqueries = at::matmul(dscores, made.keys.transpose(2, 3));
    dqueries.add_(at::matmul(of_distances, made.distances.transpose(1, 2)));
    const Tensor dkeys = at::matmul(made.queries.transpose(2, 3), dscores).mul_(kKeyScale);
    const Tensor factors = query_factors(wide(scale->value()), spec.scores);
    if (scale->trainable()) {
      // Factors may underflow to 0; then unscaled queries cannot be computed from scaled ones.
      const Tensor plain =
          blocks.queries(wide(qkv).view({qkv.size(0), 3, heads, spec.heads.dim}).select(1, 0));
      const Tensor of_factors = (dqueries * plain).sum({0, 1, 2});
      scale->gradient().add_(of_factors * at::sigmoid(wide(scale->value())) * spec.scores.scale);
    }
    const Tensor dqkv =
        at::cat({blocks.rows(dqueries * factors).flatten(1), blocks.summed_keys(dkeys).flatten(1),
                 blocks.summed_keys(dvalues).flatten(1)},
                1);
    // (heads, dim, distances), the sum over all queries.
    const Tensor ddistances = at::matmul(made.queries.transpose(0, 1).flatten(1, 2).transpose(1, 2),
                                         of_distances.transpose(0, 1).flatten(1, 2))
                                  .permute({2, 0, 1})
                                  .flatten(1);
    return {dqkv.to(qkv.scalar_type()), ddistances.to(qkv.scalar_type()), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor relative_sinusoids(const RelativeSpec& spec, int64_t width,
                              const at::TensorOptions& options) {
  constexpr double kLongest = 10000;
  const at::TensorOptions in_double = options.dtype(at::kDouble);
  const int64_t pairs = width / 2;
  const double step = std::log(kLongest) / static_cast<double>(std::max<int64_t>(pairs - 1, 1));
  const at::Tensor positions = spec.first - at::arange(spec.rows(), in_double).unsqueeze(1);
  const at::Tensor angles = positions * at::exp(at::arange(pairs, in_double) * -step);
  return at::cat({angles.sin(), angles.cos()}, 1).mul_(positions >= 0).to(options);
}

at::Tensor relative_attention(const at::Tensor& qkv, const at::Tensor& distances,
                              const at::Tensor& positions, Parameter& scale,
                              const AttentionSpec& spec) {
  return RelativeAttentionFunction::apply(qkv, distances, scale.anchor(), positions, &scale, spec);
}

}  // namespace zea
