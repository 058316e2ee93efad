// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta_run.hpp"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.hpp"
#include "kernels/delta_chunks.hpp"

namespace zea {
namespace detail {
namespace {

using at::Tensor;

Tensor of_piece(const Tensor& rows, const DeltaPiece& piece) {
  return rows.narrow(0, piece.first, piece.count());
}

/// Views (tokens, heads * width) as (heads, tokens, width).
Tensor by_head(const Tensor& rows, int64_t heads) {
  return rows.view({rows.size(0), heads, -1}).transpose(0, 1);
}

Tensor zero_states(const DeltaShape& shape, const Tensor& like) {
  return at::zeros({1, shape.value_heads, shape.key_dim, shape.value_dim}, like.options());
}

Tensor kept_of(const DeltaPiece& piece, const DeltaShape& shape, const Tensor& like) {
  return at::empty(
      {kept_states(piece.tokens.bounds), shape.value_heads, shape.key_dim, shape.value_dim},
      like.options());
}

DeltaShape with_identity(const DeltaShape& shape) {
  DeltaShape wide = shape;
  wide.value_dim += shape.key_dim;
  return wide;
}

/// Returns `mixed` with `wide.value_dim - shape.value_dim` zeros behind the values of each head.
Tensor wide_rows(const Tensor& mixed, const DeltaShape& shape, const DeltaShape& wide) {
  const Tensor rows = at::zeros({mixed.size(0), wide.columns()}, mixed.options());
  // The columns of queries, keys, values and gates: by key head, or once for all heads.
  const int64_t groups = shape.by_key_head ? shape.key_heads : 1;
  const int64_t keys = 2 * shape.keys() / groups, heads = shape.value_heads / groups;
  const auto grouped = [&](const Tensor& of, const DeltaShape& by) {
    return of.narrow(1, 0, by.channels() + by.values()).unflatten(1, {groups, -1});
  };
  const auto values = [&](const Tensor& group, const DeltaShape& by) {
    return group.narrow(2, keys, heads * by.value_dim).unflatten(2, {heads, by.value_dim});
  };
  const Tensor from = grouped(mixed, shape), to = grouped(rows, wide);
  to.narrow(2, 0, keys).copy_(from.narrow(2, 0, keys));
  values(to, wide).narrow(3, 0, shape.value_dim).copy_(values(from, shape));
  const int64_t numbers = 2 * shape.value_heads;
  rows.narrow(1, wide.columns() - numbers, numbers)
      .copy_(mixed.narrow(1, shape.columns() - numbers, numbers));
  return rows;
}

/// The first piece of a run that continues a sample, scanned before the state S is known.
struct EnteredPiece {
  Tensor outputs;  ///< (value heads, tokens, value_dim + key_dim): [o_U o_M]
  Tensor states;   ///< (kept states, value heads, key_dim, value_dim + key_dim)
  Tensor last;     ///< (1, value heads, key_dim, value_dim + key_dim): [U M]
};

EnteredPiece scan_entered(const Tensor& mixed, const DeltaPiece& piece, const DeltaShape& shape) {
  const DeltaShape wide = with_identity(shape);
  const Tensor rows = wide_rows(of_piece(mixed, piece), shape, wide);
  const Tensor o = at::empty({piece.count(), wide.values()}, mixed.options());
  const Tensor first = zero_states(wide, mixed), last = zero_states(wide, mixed);
  first.narrow(3, shape.value_dim, shape.key_dim).diagonal(0, 2, 3).fill_(1);
  const Tensor states = kept_of(piece, wide, mixed);
  scan_chunks({rows, piece.tokens, wide}, o, states, {first, last});
  return {by_head(o, shape.value_heads), states, last};
}

/// Returns U + M S of (items, ..., value_dim + key_dim) and S (items, key_dim, value_dim).
Tensor moved(const Tensor& both, const Tensor& state) {
  const int64_t width = state.size(2);
  return at::baddbmm(both.narrow(2, 0, width), both.narrow(2, width, state.size(1)), state);
}

void finish_entered(const EnteredPiece& entered, const DeltaPiece& piece, const DeltaShape& shape,
                    DeltaRunOutputs& out) {
  by_head(of_piece(out.mixed, piece), shape.value_heads).copy_(moved(entered.outputs, out.first));
  const Tensor& kept = out.states.front();
  if (kept.size(0) == 0) return;
  const Tensor first = out.first.unsqueeze(0).expand_as(kept).flatten(0, 1);
  kept.flatten(0, 1).copy_(moved(entered.states.flatten(0, 1), first));
}

}  // namespace

void scan_run(const Tensor& mixed, const DeltaRun& run, const DeltaShape& shape,
              const at::TensorOptions& type, StatePassing& passing, DeltaRunOutputs& out) {
  out.mixed = at::empty({run.tokens, shape.values()}, type);
  for (const DeltaPiece& piece : run.pieces) out.states.push_back(kept_of(piece, shape, mixed));
  const auto scan = [&](size_t p, const Tensor& last) {
    const DeltaPiece& piece = run.pieces[p];
    scan_chunks({of_piece(mixed, piece), piece.tokens, shape}, of_piece(out.mixed, piece),
                out.states[p], {{}, last});
  };
  EnteredPiece entered;
  Tensor own;
  if (run.continues) {
    entered = scan_entered(mixed, run.pieces.front(), shape);
    out.seen = entered.outputs.narrow(2, shape.value_dim, shape.key_dim)
                   .transpose(0, 1)
                   .to(type.dtype())
                   .contiguous();
    if (run.leaves(0)) {
      own = entered.last[0];
      out.move = own.narrow(2, shape.value_dim, shape.key_dim).contiguous();
    }
  }
  if (run.goes_on && !own.defined()) {
    const Tensor last = zero_states(shape, mixed);
    scan(run.pieces.size() - 1, last);
    own = last[0];
  }
  passing.begin(own);
  for (size_t p = 0; p < run.pieces.size(); ++p)
    if (!run.enters(p) && !run.leaves(p)) scan(p, {});
  out.first = passing.end();
  ZEA_ASSERT(out.first.defined() == run.continues);
  if (run.continues) finish_entered(entered, run.pieces.front(), shape, out);
}

void scan_run_backward(const Tensor& mixed, const DeltaRun& run, const DeltaShape& shape,
                       const Tensor& d_o, const DeltaRunOutputs& out, StatePassing& passing,
                       const Tensor& dmixed) {
  const auto scan = [&](size_t p, const SampleStates& of_samples) {
    const DeltaPiece& piece = run.pieces[p];
    scan_chunks_backward({of_piece(mixed, piece), piece.tokens, shape}, of_piece(d_o, piece),
                         out.states[p], of_piece(dmixed, piece), of_samples);
  };
  Tensor own;
  if (run.continues) {
    const Tensor seen = out.seen.to(mixed.scalar_type()).permute({1, 2, 0});
    own = at::bmm(seen, by_head(of_piece(d_o, run.pieces.front()), shape.value_heads));
    if (out.move.defined()) own = at::cat({own, out.move.transpose(1, 2)}, 2);
  }
  passing.begin(own);
  for (size_t p = 0; p < run.pieces.size(); ++p)
    if (!run.enters(p) && !run.leaves(p)) scan(p, {});
  const Tensor d_last = passing.end();
  ZEA_ASSERT(d_last.defined() == run.goes_on);
  const auto as_sample = [](bool is_here, const Tensor& state) {
    return is_here ? state.unsqueeze(0).contiguous() : Tensor();
  };
  for (size_t p = 0; p < run.pieces.size(); ++p)
    if (run.enters(p) || run.leaves(p))
      scan(p, {as_sample(run.enters(p), out.first), as_sample(run.leaves(p), d_last)});
}

}  // namespace detail

at::Tensor passed_state(const std::vector<at::Tensor>& sent) {
  if (sent.empty()) return {};
  at::Tensor state = sent.back();
  for (size_t i = sent.size() - 1; i-- > 0;) state = detail::moved(sent[i], state);
  return state;
}

DeltaRun::DeltaRun(const std::vector<int64_t>& bounds, int64_t halo, bool continues, bool goes_on)
    : tokens(bounds.back()), halo(halo), continues(continues), goes_on(goes_on) {
  ZEA_ASSERT(halo == 0 || continues);
  const int64_t samples = std::ssize(bounds) - 1;
  std::vector<int64_t> first_rows(static_cast<size_t>(tokens + halo), 0);
  for (int64_t s = 0; s < samples; ++s)
    std::fill(first_rows.begin() + bounds[s] + halo, first_rows.begin() + bounds[s + 1] + halo,
              s == 0 ? 0 : bounds[s] + halo);
  starts = at::tensor(first_rows, at::kLong);
  const auto add = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    DeltaPiece piece{.first = bounds[begin], .tokens = {}};
    for (int64_t s = begin; s <= end; ++s) piece.tokens.bounds.push_back(bounds[s] - piece.first);
    piece.tokens.chunks = chunk_table(piece.tokens.bounds);
    pieces.push_back(std::move(piece));
  };
  const int64_t begin = continues ? 1 : 0;
  const int64_t end = std::max(begin, goes_on ? samples - 1 : samples);
  add(0, begin);
  add(begin, end);
  add(end, samples);
}

}  // namespace zea
