// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "zea/kernels/matmul.hpp"
#include "zea/parallel/torch_dtype.hpp"

namespace zea {
namespace {

// Those of torch.optim.Muon.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
constexpr int kSteps = 5;

/// The part of a matrix, or of the packed elements of a piece, that a box is.
at::Tensor box_of(const at::Tensor& matrix, const Extent& box) {
  return matrix.narrow(0, box.offset[0], box.length[0]).narrow(1, box.offset[1], box.length[1]);
}

at::Tensor packed(const at::Tensor& flat, int64_t begin, const Extent& box) {
  return flat.narrow(0, begin, box.elements()).view({box.length[0], box.length[1]});
}

/// factor sum + a b
at::Tensor scaled_plus_product(const at::Tensor& sum, double factor, const at::Tensor& a,
                               const at::Tensor& b) {
  const at::Tensor result = sum.mul(factor);
  add_product(result, a, b);
  return result;
}

at::Tensor step_by_step(at::Tensor x) {
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor gram = product(x, x.t());
    x = scaled_plus_product(x, kA, scaled_plus_product(gram, kB, gram.mul(kC), gram), x);
  }
  return x;
}

/// The same with only two products of the long side: a step multiplies x from the left by what is
/// made of its Gram matrix, which is known after it, too.
at::Tensor through_gram(const at::Tensor& x) {
  at::Tensor gram = product(x, x.t()), all;
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor step = scaled_plus_product(gram, kB, gram.mul(kC), gram);
    step.diagonal().add_(kA);
    all = i == 0 ? step : product(step, all);
    if (i + 1 < kSteps) gram = product(product(step, gram), step);
  }
  return product(all, x);
}

}  // namespace

at::Tensor nesterov_update(at::Tensor average, const at::Tensor& gradient, double momentum) {
  average.lerp_(gradient, 1 - momentum);
  return gradient.lerp(average, momentum);
}

at::Tensor orthogonalise(const at::Tensor& matrix, at::ScalarType type) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(type);
  if (is_tall) x = x.t();
  x = x.div(x.norm().clamp_min(kEps));  // no singular value above 1
  // In bf16 a Gram matrix would be all that is left of small singular values.
  const bool is_long = x.size(1) >= kMuonLong * x.size(0) && type != at::kBFloat16;
  x = is_long ? through_gram(x) : step_by_step(x);
  return is_tall ? x.t() : x;
}

double muon_scale(MuonRate rate, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  return rate == MuonRate::Original ? std::sqrt(std::max(1.0, a / b))
                                    : 0.2 * std::sqrt(std::max(a, b));
}

Muon::Muon(Engine& engine) : engine_(engine) {
  const Plan& plan = engine.plan();
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    if (plan.holds(engine.world_rank(), static_cast<int>(g))) add_part(static_cast<int>(g));
}

void Muon::add_part(int buffer) {
  const Plan& plan = engine_.plan();
  const Sharding& sharding = plan.shardings[buffer];
  const std::string& module = plan.buffers[buffer].module;
  Part part;
  part.buffer = buffer;
  part.matrices = muon_matrices(plan.model, plan.buffers[buffer], plan.param_rules,
                                sharding.shards * sharding.replicas);
  if (part.matrices.empty()) return;
  Mesh& mesh = engine_.mesh();
  if (sharding.shards > 1) part.shard_group = &mesh.along(module, sharding.sharded_over);
  if (sharding.replicas > 1) part.replicas = &mesh.along(module, sharding.summed_over);
  if (plan.mesh.grid(module).tp > 1) part.pieces = &mesh.along(module, sharding.cut_over);
  part.rank = (part.shard_group ? part.shard_group->rank() : 0) * sharding.replicas +
              (part.replicas ? part.replicas->rank() : 0);
  const FlatRange range = engine_.buffers()[buffer]->range();
  for (const FlatPart& own : parts_in_range(plan.buffers[buffer], range))
    if (plan.param_rules[own.param].orthogonalises)
      part.runs.push_back(
          {own.flat_begin - range.begin, own.elements, plan.param_rules[own.param]});
  parts_.push_back(std::move(part));
}

void Muon::step(const std::vector<bool>& buffers_with_gradient, const Update& update) {
  for (const Part& part : parts_) {
    const bool is_due = std::ranges::any_of(part.matrices, [&](const MuonMatrix& matrix) {
      return update.step > matrix.frozen_updates;
    });
    if (is_due && buffers_with_gradient[part.buffer]) step_part(part, update);
  }
}

void Muon::step_part(const Part& part, const Update& update) {
  at::Tensor made = gather(part, own_updates(part, update));
  made = orthogonalise_own(part, made, update.step);
  apply(part, share(part, made), update);
}

/// (shard) what is to be orthogonalised, zero elsewhere.
at::Tensor Muon::own_updates(const Part& part, const Update& update) const {
  const ShardedBuffer& buffer = *engine_.buffers()[part.buffer];
  const double momentum = engine_.plan().options.optim.momentum;
  const at::Tensor& average = engine_.state(buffer, "momentum_buffer");
  const at::Device device = engine_.microbatch_options().device;
  at::Tensor own = at::zeros_like(buffer.gradient(), at::TensorOptions().device(device));
  for (const Run& run : part.runs) {
    if (update.step <= run.rule.frozen_updates) continue;
    const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.elements); };
    of(own).copy_(
        nesterov_update(of(average), of(buffer.gradient()) * update.gradient_scale, momentum));
  }
  return own;
}

/// (tp rank, element) of all shards and all pieces.
at::Tensor Muon::gather(const Part& part, at::Tensor own) const {
  const DType type = engine_.plan().precision.master;
  if (part.shard_group) {
    const int64_t elements = own.numel();
    at::Tensor all = at::empty({part.shard_group->size() * elements}, own.options());
    part.shard_group
        ->all_gather(own.data_ptr(), all.data_ptr(), Counts(part.shard_group->size(), elements),
                     type)
        .wait();
    own = all;
  }
  if (!part.pieces) return own.unsqueeze(0);
  at::Tensor all = at::empty({part.pieces->size(), own.numel()}, own.options());
  part.pieces
      ->all_gather(own.data_ptr(), all.data_ptr(), Counts(part.pieces->size(), own.numel()), type)
      .wait();
  return all;
}

/// (element of this piece) the matrices that are this rank's to make, zero elsewhere.
at::Tensor Muon::orthogonalise_own(const Part& part, const at::Tensor& pieces, int64_t step) const {
  const Plan& plan = engine_.plan();
  const MuonRate rate = plan.options.optim.muon_rate;
  const at::ScalarType type = to_torch(plan.precision_of(plan.buffers[part.buffer].module).param);
  const int own_piece = plan.piece_rank(engine_.world_rank(), part.buffer);
  at::Tensor made = at::zeros({pieces.size(1)}, pieces.options());
  for (const MuonMatrix& matrix : part.matrices) {
    if (matrix.owner != part.rank || step <= matrix.frozen_updates) continue;
    const auto each_box = [&](int piece, const auto& visit) {
      for (const FlatParam& member : matrix.members)
        for (const PieceBox& box :
             boxes_of_piece(plan.model.params[member.param], plan.cuts[member.param], piece, 0,
                            member.elements))
          visit(member.offset + box.begin, box.extent);
    };
    at::Tensor whole = at::zeros({matrix.shape[0], matrix.shape[1]}, pieces.options());
    for (int piece = 0; piece < pieces.size(0); ++piece)
      each_box(part.pieces ? piece : own_piece, [&](int64_t begin, const Extent& box) {
        box_of(whole, box).copy_(packed(pieces[piece], begin, box));
      });
    whole = orthogonalise(whole, type).to(pieces.scalar_type()) *
            muon_scale(rate, matrix.shape[0], matrix.shape[1]);
    each_box(own_piece, [&](int64_t begin, const Extent& box) {
      packed(made, begin, box).copy_(box_of(whole, box));
    });
  }
  return made;
}

/// (shard) what all have made, each its own: sums with zeros are exact.
at::Tensor Muon::share(const Part& part, at::Tensor made) const {
  const DType type = engine_.plan().precision.master;
  if (part.shard_group) {
    const int64_t elements = made.numel() / part.shard_group->size();
    at::Tensor own = at::empty({elements}, made.options());
    part.shard_group
        ->reduce_scatter(made.data_ptr(), own.data_ptr(),
                         Counts(part.shard_group->size(), elements), type)
        .wait();
    made = own;
  }
  if (part.replicas)
    part.replicas->all_reduce(made.data_ptr(), made.numel(), type, ReduceOp::Sum).wait();
  return made;
}

void Muon::apply(const Part& part, const at::Tensor& made, const Update& update) const {
  const at::Tensor& master = engine_.buffers()[part.buffer]->master();
  for (const Run& run : part.runs) {
    if (update.step <= run.rule.frozen_updates) continue;
    const double lr = update.lr * run.rule.lr_factor;
    const at::Tensor own = made.narrow(0, run.begin, run.elements).to(master.device());
    master.narrow(0, run.begin, run.elements).mul_(1 - lr * run.rule.weight_decay).add_(own, -lr);
  }
}

}  // namespace zea
