// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/muon.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "zea/kernels/flat_kernels.hpp"
#include "zea/kernels/gram_iteration.hpp"
#include "zea/parallel/torch_dtype.hpp"

namespace zea {
namespace {

// Those of torch.optim.Muon.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
constexpr int kSteps = 5;
/// Of them through one Gram matrix of a long matrix: with more, what is rounded in it would outgrow
/// small singular values, whose squares it has.
constexpr int kGramSteps = 3;

/// The part of a matrix, or of the packed elements of a piece, that a box is.
at::Tensor box_of(const at::Tensor& matrix, const Extent& box) {
  return matrix.narrow(0, box.offset[0], box.length[0]).narrow(1, box.offset[1], box.length[1]);
}

at::Tensor packed(const at::Tensor& flat, int64_t begin, const Extent& box) {
  return flat.narrow(0, begin, box.elements()).view({box.length[0], box.length[1]});
}

/// So many steps of x = 3.4445 x + (-4.7750 g + 2.0315 g g) x, where g = x x^T, with two products
/// of the long side: a step multiplies x from the left by what is made of its Gram matrix, which is
/// known after it, too. What steps multiply x by is kept as power I + rest, so that rounding
/// touches no small singular value.
void take_steps(GramIteration& iteration, int steps) {
  at::Tensor gram = iteration.gram(), rest;
  double power = 1;
  for (int i = 0; i < steps; ++i) {
    const at::Tensor step = iteration.product(gram, gram, kC, {{gram, kB}});
    rest = i == 0 ? step : iteration.product(step, rest, 1, {{rest, kA}, {step, power}});
    power *= kA;
    if (i + 1 == steps) break;
    const at::Tensor half = iteration.product(step, gram, 1, {{gram, kA}});
    gram = iteration.product(half, step, 1, {{half, kA}});
  }
  iteration.apply(rest, power);
}

/// As torch.optim.Muon has it; but runs in fp64 are to be exact.
at::ScalarType iteration_type(DType master) {
  return master == DType::Float64 ? at::kDouble : at::kBFloat16;
}

}  // namespace

at::Tensor orthogonalise(const at::Tensor& matrix, at::ScalarType type) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = type == at::kBFloat16 ? matrix : matrix.to(type);
  if (is_tall) x = x.t().contiguous();
  x = x.div(x.norm().clamp_min(kEps));  // no singular value above 1
  const std::unique_ptr<GramIteration> iteration = gram_iteration(x, type);
  const int at_once = x.size(1) >= kMuonLong * x.size(0) ? kGramSteps : 1;
  for (int left = kSteps; left > 0; left -= at_once)
    take_steps(*iteration, std::min(left, at_once));
  return is_tall ? iteration->x().t() : iteration->x();
}

double muon_scale(MuonRate rate, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  return rate == MuonRate::Original ? std::sqrt(std::max(1.0, a / b))
                                    : 0.2 * std::sqrt(std::max(a, b));
}

Muon::Muon(Engine& engine) : engine_(engine) {
  const Plan& plan = engine.plan();
  for (MuonPart& part : muon_parts(plan.model, plan.buffers, plan.shardings, plan.param_rules,
                                   plan.held_buffers(engine.world_rank())))
    parts_.push_back(make_part(std::move(part)));
}

Muon::Part Muon::make_part(MuonPart planned) {
  const Plan& plan = engine_.plan();
  const Sharding& sharding = plan.shardings[planned.buffers.front()];
  const std::string& module = plan.buffers[planned.buffers.front()].module;
  Part part;
  part.plan = std::move(planned);
  Mesh& mesh = engine_.mesh();
  if (sharding.shards > 1) part.shard_group = &mesh.along(module, sharding.sharded_over);
  if (sharding.replicas > 1) part.replicas = &mesh.along(module, sharding.summed_over);
  if (plan.mesh.grid(module).tp > 1) part.pieces = &mesh.along(module, sharding.cut_over);
  const int buffer = part.plan.buffers.front(), rank = engine_.world_rank();
  part.share = muon_share(part.plan, plan.buffers, sharding, plan.shard_of(rank, buffer),
                          plan.copy_of(rank, buffer));
  return part;
}

void Muon::step(const std::vector<bool>& buffers_with_gradient, const Update& update) {
  for (const Part& part : parts_) {
    const Due due{engine_.plan().param_rules, buffers_with_gradient, update.step};
    if (std::ranges::any_of(part.plan.matrices,
                            [&](const MuonMatrix& matrix) { return due.is(matrix); }))
      step_part(part, due, update);
  }
}

bool Muon::Due::is(int buffer, int param) const {
  return rules[param].trains_at(step) && buffers_with_gradient[buffer];
}

bool Muon::Due::is(const MuonMatrix& matrix) const {
  return std::ranges::any_of(
      matrix.members, [&](const FlatParam& member) { return is(matrix.buffer, member.param); });
}

/// Of frozen matrices, and of buffers without a gradient, nothing is made: what is sent of them is
/// anything, and is not read.
void Muon::step_part(const Part& part, const Due& due, const Update& update) {
  const std::vector<int64_t>& of_replicas = part.share.of_replicas;
  const at::Tensor moved = updates_of(part, due, update);
  const auto first = of_replicas.begin();
  const int replica = part.replicas ? part.replicas->rank() : 0;
  const int64_t begin = std::reduce(first, first + replica);
  const at::Tensor section = moved.narrow(0, begin, of_replicas[static_cast<size_t>(replica)]);
  if (part.shard_group) {
    orthogonalise_apart(part, section, due);
  } else {
    orthogonalise_own(part, section, due);
  }
  if (part.replicas)
    part.replicas
        ->all_gather(section.data_ptr(), moved.data_ptr(), of_replicas,
                     engine_.plan().precision.master)
        .wait();
  apply(part, moved, due, update);
}

/// What is to be orthogonalised of the runs, one after the other. States may be offloaded.
at::Tensor Muon::updates_of(const Part& part, const Due& due, const Update& update) const {
  const Plan& plan = engine_.plan();
  const std::vector<int64_t>& counts = part.share.of_replicas;
  const at::Device there = engine_.buffers()[part.plan.buffers.front()]->master().device();
  const at::Tensor moved =
      at::empty({std::reduce(counts.begin(), counts.end())}, options().device(there));
  std::vector<NesterovRun> runs;
  for_each_run(part, due, [&](const MuonRun& run, int64_t begin) {
    const ShardedBuffer& shard = *engine_.buffers()[run.buffer];
    const auto of = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.elements); };
    runs.push_back({of(engine_.state(shard, "momentum_buffer")), of(shard.gradient()),
                    moved.narrow(0, begin, run.elements), plan.options.optim.momentum,
                    update.gradient_scale});
  });
  nesterov(runs);
  return moved.to(options().device());
}

/// visit(run, where it begins among all) for those that are due.
void Muon::for_each_run(const Part& part, const Due& due, const auto& visit) const {
  int64_t begin = 0;
  for (const MuonRun& run : part.share.runs) {
    if (due.is(run.buffer, run.param)) visit(run, begin);
    begin += run.elements;
  }
}

/// `section` holds what lies in this rank's shard of the matrices that the ranks of its shard group
/// make, by rank: they send each other theirs, and back what came of it.
void Muon::orthogonalise_apart(const Part& part, const at::Tensor& section, const Due& due) const {
  const DType type = engine_.plan().precision.master;
  const MuonShare& share = part.share;
  const int64_t elements = part.plan.counts[static_cast<size_t>(part.share.rank)];
  const at::Tensor received = at::empty({elements}, options()), own = at::empty_like(received);
  part.shard_group
      ->all_to_all(section.data_ptr(), share.sent, received.data_ptr(), share.received, type)
      .wait();
  const int64_t first = part.plan.first_made(part.share.rank);
  const auto copy_runs = [&](const at::Tensor& to, const at::Tensor& from, bool comes) {
    int64_t begin = 0;
    for (const MuonRun& run : share.owned) {
      const int64_t made = run.made - first;
      to.narrow(0, comes ? made : begin, run.elements)
          .copy_(from.narrow(0, comes ? begin : made, run.elements));
      begin += run.elements;
    }
  };
  copy_runs(own, received, true);
  orthogonalise_own(part, own, due);
  copy_runs(received, own, false);
  part.shard_group
      ->all_to_all(received.data_ptr(), share.received, section.data_ptr(), share.sent, type)
      .wait();
}

/// `own`: this tp rank's pieces of the matrices that this rank makes, one after the other; becomes
/// those of what is made. Padding of pieces stays as it is.
void Muon::orthogonalise_own(const Part& part, const at::Tensor& own, const Due& due) const {
  at::Tensor all = own.unsqueeze(0);
  if (part.pieces) {
    const int size = part.pieces->size();
    all = at::empty({size, own.numel()}, options());
    part.pieces
        ->all_gather(own.data_ptr(), all.data_ptr(), Counts(static_cast<size_t>(size), own.numel()),
                     engine_.plan().precision.master)
        .wait();
  }
  for (const MuonMatrix& matrix : part.plan.matrices)
    if (matrix.owner == part.share.rank && due.is(matrix))
      orthogonalise_in(own, all, matrix, matrix.begin - part.plan.first_made(part.share.rank));
}

/// `pieces` (tp rank, element) hold the matrix from `begin` on.
void Muon::orthogonalise_in(const at::Tensor& own, const at::Tensor& pieces,
                            const MuonMatrix& matrix, int64_t begin) const {
  const Plan& plan = engine_.plan();
  const int own_piece = plan.piece_rank(engine_.world_rank(), matrix.buffer);
  const auto each_box = [&](int piece, const auto& visit) {
    int64_t member_begin = begin;
    for (const FlatParam& member : matrix.members) {
      for (const PieceBox& box : boxes_of_piece(plan.model.params[member.param],
                                                plan.cuts[member.param], piece, 0, member.elements))
        visit(member_begin + box.begin, box.extent);
      member_begin += member.elements;
    }
  };
  at::Tensor whole;
  if (pieces.size(0) == 1 && matrix.members.size() == 1) {
    whole = packed(pieces[0], begin, zea::whole(matrix.shape));
  } else {
    whole = at::empty({matrix.shape[0], matrix.shape[1]}, pieces.options());
    for (int piece = 0; piece < pieces.size(0); ++piece)
      each_box(pieces.size(0) > 1 ? piece : own_piece, [&](int64_t from, const Extent& box) {
        box_of(whole, box).copy_(packed(pieces[piece], from, box));
      });
  }
  whole = orthogonalise(whole, iteration_type(plan.precision.master));
  const at::Tensor scale = at::scalar_tensor(
      muon_scale(plan.options.optim.muon_rate, matrix.shape[0], matrix.shape[1]), at::kDouble);
  each_box(own_piece, [&](int64_t to, const Extent& box) {
    at::Tensor target = packed(own, to, box);
    at::mul_out(target, box_of(whole, box), scale);
  });
}

/// As SGD without momentum takes a gradient, which then holds the decay, too.
void Muon::apply(const Part& part, const at::Tensor& moved, const Due& due,
                 const Update& update) const {
  std::vector<SgdRun> runs;
  for_each_run(part, due, [&](const MuonRun& run, int64_t begin) {
    const at::Tensor& master = engine_.buffers()[run.buffer]->master();
    const ParamRule& rule = engine_.plan().param_rules[run.param];
    const at::Tensor made = moved.narrow(0, begin, run.elements).to(master.device());
    runs.push_back({master.narrow(0, run.begin, run.elements),
                    made,
                    made,
                    {.lr = update.lr * rule.lr_factor_at(due.step),
                     .weight_decay = rule.weight_decay_at(due.step)}});
  });
  sgd(runs);
}

at::TensorOptions Muon::options() const {
  return at::TensorOptions()
      .dtype(to_torch(engine_.plan().precision.master))
      .device(engine_.microbatch_options().device);
}

}  // namespace zea
