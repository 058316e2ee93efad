// SPDX-License-Identifier: Apache-2.0
#include "optim/muon.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "kernels/flat_kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/matmul.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea {
namespace {

// The constants of torch.optim.Muon.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
constexpr int kSteps = 5;
/// Steps through one Gram matrix of a long matrix: with more, its rounding would outgrow small
/// singular values, whose squares it has.
constexpr int kGramSteps = 3;

/// Returns the part of a matrix, or of a packed piece, in the last two dims of `box`. A dim of
/// experts before them is ignored.
at::Tensor box_of(const at::Tensor& matrix, const Extent& box) {
  const size_t row = box.offset.size() - 2, column = row + 1;
  return matrix.narrow(0, box.offset[row], box.length[row])
      .narrow(1, box.offset[column], box.length[column]);
}

at::Tensor packed(const at::Tensor& flat, int64_t begin, const Extent& box) {
  return flat.narrow(0, begin, box.elements()).view({-1, box.length.back()});
}

/// Takes `steps` steps of x = 3.4445 x + (-4.7750 g + 2.0315 g g) x with g = x x^T, for x (m, n)
/// with m <= n, by two GEMMs over n: each step multiplies x by a polynomial of its Gram matrix g,
/// which also gives the next g. The product of these polynomials is kept as power I + rest, so that
/// rounding to `operands` touches no small singular value. Returns x times `scale`.
at::Tensor take_steps(const at::Tensor& x, at::ScalarType operands, int steps, double scale) {
  const auto product = [&](const at::Tensor& a, const at::Tensor& b, double factor,
                           const Addends& addends) {
    return symmetric_product(a, b, operands, factor, addends);
  };
  at::Tensor gram = product(x, x.t(), 1, {}), rest;
  double power = 1;
  for (int i = 0; i < steps; ++i) {
    const at::Tensor step = product(gram, gram, kC, {{gram, kB}});
    rest = i == 0 ? step : product(step, rest, 1, {{rest, kA}, {step, power}});
    power *= kA;
    if (i + 1 == steps) break;
    const at::Tensor half = product(step, gram, 1, {{gram, kA}});
    gram.reset();
    gram = product(half, step, 1, {{half, kA}});
  }
  const at::Tensor made = rounded_product(rest, x, operands, {{x, power}});
  return scale == 1 ? made : made.mul_(scale);
}

/// Returns bf16, as torch.optim.Muon does, but fp64 for runs in fp64, which are to be exact.
at::ScalarType iteration_type(DType master) {
  return master == DType::Float64 ? at::kDouble : at::kBFloat16;
}

}  // namespace

void orthogonalize(const at::Tensor& matrix, at::ScalarType type, double scale) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = type == at::kBFloat16 ? matrix : matrix.to(type);
  const at::Tensor norm = x.norm().clamp_min(kEps);  // so that no singular value is above 1
  x = (is_tall ? x.t().contiguous() : x).div(norm);
  const int64_t least = x.size(0), most = x.size(1);
  const int at_once = most >= kMuonLong * least ? kGramSteps : 1;
  for (int left = kSteps; left > 0; left -= at_once)
    x = take_steps(x, type, std::min(left, at_once), left > at_once ? 1 : scale);
  matrix.copy_(is_tall ? x.t() : x);
}

double muon_scale(MuonRate rate, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
  return rate == MuonRate::Original ? std::sqrt(std::max(1.0, a / b))
                                    : 0.2 * std::sqrt(std::max(a, b));
}

Muon::Muon(Engine& engine) : engine_(engine) {
  for (MuonWork& work : muon_work(engine.plan(), engine.world_rank()))
    parts_.push_back(make_part(std::move(work)));
}

Muon::Part Muon::make_part(MuonWork work) {
  const Plan& plan = engine_.plan();
  const int buffer = work.part.buffers.front();
  const Sharding& sharding = plan.shardings[buffer];
  const std::string& module = plan.buffers[buffer].module;
  Part part{std::move(work.part), std::move(work.share)};
  Mesh& mesh = engine_.mesh();
  if (sharding.shards > 1) part.shard_group = &mesh.along(module, sharding.sharded_over);
  if (sharding.replicas > 1) part.replicas = &mesh.along(module, sharding.summed_over);
  if (plan.tp_pieces(buffer) > 1) part.pieces = &mesh.along(module, {Axis::Tp});
  return part;
}

void Muon::step(const std::vector<bool>& buffers_with_gradient, const Update& update) {
  const Due due{engine_.plan().param_rules, buffers_with_gradient, update.step};
  std::optional<Moved> before;
  const auto apply_before = [&] {
    if (before) apply(*before, due, update);
  };
  for (const Part& part : parts_) {
    if (std::ranges::none_of(part.plan.matrices,
                             [&](const MuonMatrix& matrix) { return due.is(matrix); }))
      continue;
    Moved moved = move_part(part, due, update);
    apply_before();
    before = std::move(moved);
  }
  apply_before();
}

bool Muon::Due::is(int buffer, int param) const {
  return rules[param].trains_at(step) && buffers_with_gradient[buffer];
}

bool Muon::Due::is(const MuonMatrix& matrix) const {
  return std::ranges::any_of(
      matrix.members, [&](const FlatPart& member) { return is(matrix.buffer, member.param); });
}

/// Frozen matrices and buffers without a gradient are skipped: the elements sent for them have any
/// value and are not read.
Muon::Moved Muon::move_part(const Part& part, const Due& due, const Update& update) const {
  const std::vector<int64_t>& of_replicas = part.share.of_replicas;
  Moved moved{&part, updates_of(part, due, update), {}, {}};
  const auto first = of_replicas.begin();
  const int replica = part.replicas ? part.replicas->rank() : 0;
  const int64_t begin = std::reduce(first, first + replica);
  const at::Tensor section = moved.runs.narrow(0, begin, of_replicas[static_cast<size_t>(replica)]);
  if (part.shard_group) {
    orthogonalize_joined(moved, section, due);
  } else {
    orthogonalize_made(part, section, at::Tensor(), due);
  }
  if (part.replicas) {
    moved.arriving.wait();
    moved.arriving = part.replicas->all_gather(section.data_ptr(), moved.runs.data_ptr(),
                                               of_replicas, engine_.plan().precision.master);
  }
  return moved;
}

/// Returns the updates of the runs before they are orthogonalized, one after the other. States may
/// be offloaded.
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

/// `section` holds the parts in this rank's shard of the matrices that the ranks of its shard group
/// orthogonalize. Ranks exchange the runs that lie in several shards, and return the results.
void Muon::orthogonalize_joined(Moved& moved, const at::Tensor& section, const Due& due) const {
  const Part& part = *moved.part;
  const DType type = engine_.plan().precision.master;
  const MuonShare& share = part.share;
  const auto& [sent, received] = std::tie(share.sent, share.received);
  const at::Tensor joined = at::empty({share.joined_elements}, options());
  const at::Tensor others = at::empty({std::reduce(received.begin(), received.end())}, options());
  moved.others = others;
  const auto each_join = [&](const auto& visit) {
    for (const MuonJoin& join : share.joins) {
      const at::Tensor& from = join.shard == part.shard_group->rank() ? section : others;
      visit(joined.narrow(0, join.to, join.elements), from.narrow(0, join.from, join.elements));
    }
  };
  part.shard_group->all_to_all(section.data_ptr(), sent, others.data_ptr(), received, type).wait();
  each_join([](const at::Tensor& whole, const at::Tensor& run) { whole.copy_(run); });
  orthogonalize_made(part, section, joined, due);
  each_join([](const at::Tensor& whole, const at::Tensor& run) { run.copy_(whole); });
  moved.arriving =
      part.shard_group->all_to_all(others.data_ptr(), received, section.data_ptr(), sent, type);
}

/// Orthogonalises the matrices that this rank makes and writes its tp pieces of them. Padding of
/// pieces stays as it is.
void Muon::orthogonalize_made(const Part& part, const at::Tensor& section, const at::Tensor& joined,
                              const Due& due) const {
  const auto place = [&](const MuonMade& made) { return made.is_joined ? joined : section; };
  const std::vector<MuonMade>& all = part.share.made;
  if (all.empty()) return;
  at::Tensor pieces;  // (tp rank, element), from the first matrix on
  const int64_t first = part.pieces ? all.front().begin : 0;
  if (part.pieces)
    pieces = gathered(
        part, place(all.front())
                  .narrow(0, first, part.plan.counts[static_cast<size_t>(part.share.rank)]));
  const auto make = [&](const MuonMade& made) {
    const MuonMatrix& matrix = part.plan.matrices[static_cast<size_t>(made.matrix)];
    const at::Tensor own = place(made).narrow(0, made.begin, matrix.held_elements());
    orthogonalize_in(
        own, part.pieces ? pieces.narrow(1, made.begin - first, own.numel()) : own.unsqueeze(0),
        matrix);
  };
  const bool is_on_host = options().device().is_cpu();
  std::vector<MuonMade> small;
  for (const MuonMade& made : all) {
    const MuonMatrix& matrix = part.plan.matrices[static_cast<size_t>(made.matrix)];
    if (!due.is(matrix)) continue;
    if (is_on_host && matrix.is_small())
      small.push_back(made);
    else
      make(made);
  }
  side_by_side(std::ssize(small), [&](int64_t i) { make(small[static_cast<size_t>(i)]); });
}

/// (tp rank, element) of what each of them has.
at::Tensor Muon::gathered(const Part& part, const at::Tensor& own) const {
  const int size = part.pieces->size();
  const at::Tensor all = at::empty({size, own.numel()}, options());
  part.pieces
      ->all_gather(own.data_ptr(), all.data_ptr(), Counts(static_cast<size_t>(size), own.numel()),
                   engine_.plan().precision.master)
      .wait();
  return all;
}

/// Orthogonalises the matrix of `pieces` (tp rank, element) and writes this rank's piece to `own`.
void Muon::orthogonalize_in(const at::Tensor& own, const at::Tensor& pieces,
                            const MuonMatrix& matrix) const {
  const Plan& plan = engine_.plan();
  const at::ScalarType type = iteration_type(plan.precision.master);
  const double scale = muon_scale(plan.options.optim.muon_rate, matrix.shape[0], matrix.shape[1]);
  if (pieces.size(0) == 1 && matrix.members.size() == 1)
    return orthogonalize(packed(own, 0, zea::whole(matrix.shape)), type, scale);
  const int own_piece = plan.piece_rank(engine_.world_rank(), matrix.buffer);
  const auto each_box = [&](int piece, const auto& visit) {
    int64_t begin = 0;
    for (const FlatPart& member : matrix.members) {
      for (const PieceBox& box :
           boxes_of_piece(plan.model.params[member.param], plan.cuts[member.param], piece,
                          member.param_begin, member.param_begin + member.elements))
        visit(begin + box.begin - member.param_begin, box.extent);
      begin += member.elements;
    }
  };
  const at::Tensor whole = at::empty({matrix.shape[0], matrix.shape[1]}, pieces.options());
  for (int piece = 0; piece < pieces.size(0); ++piece)
    each_box(pieces.size(0) > 1 ? piece : own_piece, [&](int64_t from, const Extent& box) {
      box_of(whole, box).copy_(packed(pieces[piece], from, box));
    });
  orthogonalize(whole, type, scale);
  each_box(own_piece,
           [&](int64_t to, const Extent& box) { packed(own, to, box).copy_(box_of(whole, box)); });
}

/// Applies the updates as SGD without momentum applies a gradient with weight decay.
void Muon::apply(Moved& moved, const Due& due, const Update& update) const {
  moved.arriving.wait();
  std::vector<SgdRun> runs;
  for_each_run(*moved.part, due, [&](const MuonRun& run, int64_t begin) {
    const at::Tensor& master = engine_.buffers()[run.buffer]->master();
    const ParamRule& rule = engine_.plan().param_rules[run.param];
    const at::Tensor made = moved.runs.narrow(0, begin, run.elements).to(master.device());
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
