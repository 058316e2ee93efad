// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/muon.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "zea/kernels/symmetric_product.hpp"
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

/// 3.4445 x + (-4.7750 g + 2.0315 g g) x, where g = x x^T.
at::Tensor step_by_step(at::Tensor x, at::ScalarType type) {
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor gram = symmetric_product(x, x.t(), type);
    const at::Tensor step = symmetric_product(gram, gram, type, kC, {gram, kB});
    x = rounded_product(step, x, type, {x, kA});
  }
  return x;
}

/// The same with only two products of the long side: a step multiplies x from the left by what is
/// made of its Gram matrix, which is known after it, too. All that is made of it is symmetric.
at::Tensor through_gram(const at::Tensor& x, at::ScalarType type) {
  at::Tensor gram = symmetric_product(x, x.t(), type), all;
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor step = symmetric_product(gram, gram, type, kC, {gram, kB});
    step.diagonal().add_(kA);
    all = i == 0 ? step : symmetric_product(step, all, type);
    if (i + 1 < kSteps) gram = symmetric_product(symmetric_product(step, gram, type), step, type);
  }
  return rounded_product(all, x, type);
}

}  // namespace

void nesterov_update(at::Tensor average, at::Tensor update, double momentum) {
  average.lerp_(update, 1 - momentum);
  update.lerp_(average, momentum);
}

at::Tensor orthogonalise(const at::Tensor& matrix, at::ScalarType type) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = type == at::kBFloat16 ? matrix : matrix.to(type);
  if (is_tall) x = x.t();
  x = x.div(x.norm().clamp_min(kEps));  // no singular value above 1
  // In bf16 a Gram matrix would be all that is left of small singular values.
  const bool is_long = x.size(1) >= kMuonLong * x.size(0) && type != at::kBFloat16;
  x = is_long ? through_gram(x, type) : step_by_step(x, type);
  return is_tall ? x.t() : x;
}

double muon_scale(MuonRate rate, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  return rate == MuonRate::Original ? std::sqrt(std::max(1.0, a / b))
                                    : 0.2 * std::sqrt(std::max(a, b));
}

Muon::Muon(Engine& engine) : engine_(engine) {
  const Plan& plan = engine.plan();
  for (const MuonPart& part : muon_parts(plan.model, plan.buffers, plan.shardings, plan.param_rules,
                                         plan.held_buffers(engine.world_rank())))
    parts_.push_back(make_part(part));
}

Muon::Part Muon::make_part(const MuonPart& planned) {
  const Plan& plan = engine_.plan();
  const Sharding& sharding = plan.shardings[planned.buffers.front()];
  const std::string& module = plan.buffers[planned.buffers.front()].module;
  Part part;
  part.plan = planned;
  Mesh& mesh = engine_.mesh();
  if (sharding.shards > 1) part.shard_group = &mesh.along(module, sharding.sharded_over);
  if (sharding.replicas > 1) part.replicas = &mesh.along(module, sharding.summed_over);
  if (plan.mesh.grid(module).tp > 1) part.pieces = &mesh.along(module, sharding.cut_over);
  part.rank = (part.shard_group ? part.shard_group->rank() : 0) * sharding.replicas +
              (part.replicas ? part.replicas->rank() : 0);
  std::map<int, int64_t> made;  // of a member, by parameter
  for (const MuonMatrix& matrix : planned.matrices)
    for (int64_t begin = matrix.begin; const FlatParam& member : matrix.members) {
      made[member.param] = begin - member.offset;
      begin += member.elements;
    }
  for (const int buffer : planned.buffers) {
    const FlatRange range = engine_.buffers()[buffer]->range();
    for (const FlatPart& own : parts_in_range(plan.buffers[buffer], range))
      if (const auto found = made.find(own.param); found != made.end())
        part.runs.push_back({buffer, own.flat_begin - range.begin, own.elements,
                             found->second + own.flat_begin, plan.param_rules[own.param]});
  }
  return part;
}

void Muon::step(const std::vector<bool>& buffers_with_gradient, const Update& update) {
  for (const Part& part : parts_) {
    const bool is_due = std::ranges::any_of(part.plan.matrices, [&](const MuonMatrix& matrix) {
      return update.step > matrix.frozen_updates && buffers_with_gradient[matrix.buffer];
    });
    if (is_due) step_part(part, buffers_with_gradient, update);
  }
}

void Muon::step_part(const Part& part, const std::vector<bool>& buffers_with_gradient,
                     const Update& update) {
  std::map<int, at::Tensor> gathered;  // by buffer
  for (const int buffer : part.plan.buffers)
    if (buffers_with_gradient[buffer]) gathered[buffer] = gather(part, buffer, update);
  // Of frozen matrices, and of buffers without a gradient, nothing is made and nothing is read.
  // Pieces may end with padding, which stays as it is.
  const std::vector<int64_t>& counts = part.plan.counts;
  const int64_t elements = std::reduce(counts.begin(), counts.end());
  const at::TensorOptions options = gathered.begin()->second.options();
  const at::Tensor made =
      part.pieces ? at::zeros({elements}, options) : at::empty({elements}, options);
  for (const MuonMatrix& matrix : part.plan.matrices)
    if (matrix.owner == part.rank && update.step > matrix.frozen_updates &&
        gathered.contains(matrix.buffer))
      orthogonalise_into(made, matrix, gathered.at(matrix.buffer));
  share(part, made);
  for (const Run& run : part.runs)
    if (update.step > run.rule.frozen_updates && gathered.contains(run.buffer))
      apply(run, made, update);
}

/// own (shard): what is to be orthogonalised, and anything elsewhere.
void Muon::write_own_updates(const Part& part, int buffer, const at::Tensor& own,
                             const Update& update) const {
  const ShardedBuffer& shard = *engine_.buffers()[buffer];
  const double momentum = engine_.plan().options.optim.momentum;
  const at::Tensor& average = engine_.state(shard, "momentum_buffer");
  for (const Run& run : part.runs) {
    if (run.buffer != buffer || update.step <= run.rule.frozen_updates) continue;
    const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.elements); };
    const at::Tensor moved = of(shard.gradient()) * update.gradient_scale;
    nesterov_update(of(average), moved, momentum);
    of(own).copy_(moved);
  }
}

/// (tp rank, element) of all shards and all pieces.
at::Tensor Muon::gather(const Part& part, int buffer, const Update& update) const {
  const DType type = engine_.plan().precision.master;
  const int64_t elements = engine_.buffers()[buffer]->gradient().numel();
  const int shards = part.shard_group ? part.shard_group->size() : 1;
  const int pieces = part.pieces ? part.pieces->size() : 1;
  const at::Tensor all = at::empty(
      {pieces, shards * elements},
      at::TensorOptions().dtype(to_torch(type)).device(engine_.microbatch_options().device));
  const at::Tensor piece = all[part.pieces ? part.pieces->rank() : 0];
  const at::Tensor own =
      piece.narrow(0, part.shard_group ? part.shard_group->rank() * elements : 0, elements);
  write_own_updates(part, buffer, own, update);
  if (part.shard_group)
    part.shard_group->all_gather(own.data_ptr(), piece.data_ptr(), Counts(shards, elements), type)
        .wait();
  if (part.pieces)
    part.pieces->all_gather(piece.data_ptr(), all.data_ptr(), Counts(pieces, piece.numel()), type)
        .wait();
  return all;
}

/// `pieces` is of the matrix's buffer; its part of `made` gets this rank's piece of what comes out.
void Muon::orthogonalise_into(const at::Tensor& made, const MuonMatrix& matrix,
                              const at::Tensor& pieces) const {
  const Plan& plan = engine_.plan();
  const at::ScalarType type = to_torch(plan.precision_of(plan.buffers[matrix.buffer].module).param);
  const int own_piece = plan.piece_rank(engine_.world_rank(), matrix.buffer);
  const auto each_box = [&](int piece, const auto& visit) {
    int64_t begin = matrix.begin;
    for (const FlatParam& member : matrix.members) {
      for (const PieceBox& box : boxes_of_piece(plan.model.params[member.param],
                                                plan.cuts[member.param], piece, 0, member.elements))
        visit(member.offset + box.begin, begin + box.begin, box.extent);
      begin += member.elements;
    }
  };
  at::Tensor whole = at::empty({matrix.shape[0], matrix.shape[1]}, pieces.options());
  for (int piece = 0; piece < pieces.size(0); ++piece)
    each_box(pieces.size(0) > 1 ? piece : own_piece, [&](int64_t from, int64_t, const Extent& box) {
      box_of(whole, box).copy_(packed(pieces[piece], from, box));
    });
  whole = orthogonalise(whole, type);
  whole.mul_(muon_scale(plan.options.optim.muon_rate, matrix.shape[0], matrix.shape[1]));
  each_box(own_piece, [&](int64_t, int64_t to, const Extent& box) {
    packed(made, to, box).copy_(box_of(whole, box));
  });
}

/// Each rank's part of what is made goes to all: first to the replicas of its shard, then, with
/// theirs, to the other shards.
void Muon::share(const Part& part, const at::Tensor& made) const {
  const DType type = engine_.plan().precision.master;
  const auto size = static_cast<size_t>(part.replicas ? part.replicas->size() : 1);
  Counts of_shards;
  int64_t before = 0;
  const auto place = static_cast<size_t>(part.rank) / size * size;  // of the first replica
  for (size_t rank = 0; rank < part.plan.counts.size(); ++rank) {
    if (rank % size == 0) of_shards.push_back(0);
    of_shards.back() += part.plan.counts[rank];
    if (rank < place) before += part.plan.counts[rank];
  }
  const auto start = [&](int64_t first) {
    return static_cast<char*>(made.data_ptr()) + first * static_cast<int64_t>(element_bytes(type));
  };
  if (part.replicas) {
    const auto first = part.plan.counts.begin() + static_cast<std::ptrdiff_t>(place);
    const Counts counts(first, first + static_cast<std::ptrdiff_t>(size));
    const int64_t own = std::reduce(first, first + part.replicas->rank());
    part.replicas->all_gather(start(before + own), start(before), counts, type).wait();
  }
  if (part.shard_group)
    part.shard_group->all_gather(start(before), start(0), of_shards, type).wait();
}

void Muon::apply(const Run& run, const at::Tensor& made, const Update& update) const {
  const at::Tensor& master = engine_.buffers()[run.buffer]->master();
  const double lr = update.lr * run.rule.lr_factor;
  const at::Tensor own = made.narrow(0, run.made, run.elements).to(master.device());
  master.narrow(0, run.begin, run.elements).mul_(1 - lr * run.rule.weight_decay).add_(own, -lr);
}

}  // namespace zea
