// SPDX-License-Identifier: Apache-2.0
#include "memory_walk.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

UnitShare unit_share(const Plan& plan, const std::string& module) {
  const ModuleGrid& grid = plan.mesh.grid(module);
  const TokenSharding& tokens = plan.token_shardings.at(module);
  return {.tp = grid.tp,
          .sequence_parallel = tokens.sequence_parallel,
          .cp = grid.cp,
          .cp_inner = grid.cp_inner,
          .gathers_keys = tokens.context.exchange == KeyExchange::Gather};
}

}  // namespace

UnitTypes unit_types(const Plan& plan, const std::string& module, NarrowProducts products) {
  const Precision& precision = plan.precision_of(module);
  return {precision.param, precision.master, products, plan.options.run.device != DeviceKind::Cpu,
          plan.options.run.threads * kLibraryBlockBytes};
}

MemoryWalk::MemoryWalk(const Plan& plan, int place,
                       const std::vector<MicrobatchSizes>& microbatches, NarrowProducts products,
                       int64_t standing, bool forward_only)
    : plan_(plan),
      place_(place),
      microbatches_(microbatches),
      products_(products),
      forward_only_(forward_only),
      units_(microbatches.size(), std::vector<Unit>(plan.model.units.size())),
      readers_(plan.model.units.size(), 0),
      live_(standing) {
  for (size_t u = 0; u < readers_.size(); ++u)
    if (is_here(u))
      for (const UnitInput& input : spec(u).inputs) ++readers_[input.unit];
  for (microbatch_ = 0; microbatch_ < units_.size(); ++microbatch_) prepare();
}

void MemoryWalk::prepare() {
  for (size_t u = 0; u < readers_.size(); ++u) {
    if (!runs(u)) continue;
    at(u).needs_gradient = !forward_only_ && plan_.model.trains(spec(u).params);
    for (const UnitInput& input : spec(u).inputs)
      at(u).needs_gradient = at(u).needs_gradient || at(input.unit).needs_gradient;
  }
}

void MemoryWalk::run() {
  for (const Pass& pass : passes_of_place(plan_.pipeline, plan_.model, place_,
                                          static_cast<int>(microbatches_.size()), forward_only_)) {
    microbatch_ = static_cast<size_t>(pass.microbatch);
    if (microbatches_[microbatch_].tokens == 0) continue;
    std::vector<int> units = plan_.pipeline.stages[pass.stage].units;
    if (pass.kind != PassKind::Forward) std::reverse(units.begin(), units.end());
    for (int unit : units) {
      const auto u = static_cast<size_t>(unit);
      if (!runs(u)) continue;
      if (pass.kind == PassKind::Forward)
        forward(u);
      else if (!at(u).needs_gradient)
        continue;
      else if (pass.kind == PassKind::BackwardWeight)
        backward_weight(u);
      else
        backward(u, pass.kind == PassKind::BackwardInput);
    }
  }
}

bool MemoryWalk::runs(size_t u) const {
  return has_items(u) && (forward_only_ || !plan_.model.is_cached(static_cast<int>(u)));
}

bool MemoryWalk::has_items(size_t u) const {
  const MicrobatchSizes& sizes = microbatches_[microbatch_];
  return spec(u).encoder < 0 || sizes.items.of(spec(u).encoder) > 0;
}

UnitMemory MemoryWalk::declared(size_t u, bool keeps_graph) {
  UnitCall call{.keeps_graph = keeps_graph, .inputs_need_gradient = {}, .inputs_present = {}};
  for (const UnitInput& input : spec(u).inputs) {
    call.inputs_need_gradient.push_back(at(input.unit).needs_gradient);
    call.inputs_present.push_back(has_items(input.unit));
  }
  return unit_memory(plan_.model, spec(u), module_sizes(u),
                     unit_types(plan_, spec(u).module, products_), call,
                     unit_share(plan_, spec(u).module));
}

/// Of the ranks that share the unit's tokens: an encoder's items are dealt to dp_module groups of
/// them.
MicrobatchSizes MemoryWalk::module_sizes(size_t u) const {
  const std::string& module = spec(u).module;
  const MicrobatchSizes& sizes = microbatches_[microbatch_];
  if (module == kDecoder) return sizes;
  return with_items(
      plan_.model, sizes,
      largest_share(plan_.model, sizes.items, spec(u).encoder, plan_.mesh.grid(module).dp_module));
}

void MemoryWalk::touch(int64_t bytes, const char* what, size_t u) {
  if (live_ + bytes <= peak_) return;
  peak_ = live_ + bytes;
  peak_at_ = std::string(what) + " " + spec(u).name;
}

void MemoryWalk::let_go(size_t u) {
  if (--at(u).holders == 0) live_ -= at(u).output;
}

/// What another place made, when its first reader needs it.
void MemoryWalk::receive(size_t u) {
  Unit& unit = at(u);
  if (is_here(u) || unit.is_there) return;
  unit.is_there = true;
  unit.output = declared(u, false).output_bytes;
  unit.holders = unit.readers = readers_[u];
  live_ += unit.output;
}

void MemoryWalk::forward(size_t u) {
  for (const UnitInput& input : spec(u).inputs)
    if (runs(input.unit)) receive(input.unit);
  Unit& unit = at(u);
  unit.keeps_graph = unit.needs_gradient && !plan_.recomputes(static_cast<int>(u));
  const UnitMemory memory = declared(u, unit.keeps_graph);
  touch(memory.forward_peak_bytes, "forward", u);
  unit.output = memory.output_bytes;
  unit.saved = unit.keeps_graph ? memory.saved_bytes : 0;
  unit.readers = readers_[u];
  unit.holders = unit.readers + (unit.keeps_graph ? 1 : 0);
  live_ += unit.saved + (unit.holders > 0 ? unit.output : 0);
  // A consumer's reference becomes the input that its backward reads.
  for (const UnitInput& input : spec(u).inputs)
    if (runs(input.unit) && !unit.needs_gradient) let_go(input.unit);
}

void MemoryWalk::backward(size_t u, bool puts_off_weights) {
  Unit& unit = at(u);
  const UnitMemory memory = declared(u, true);
  // Read at other places alone: its gradient comes from there.
  if (unit.gradient == 0 && readers_[u] == 0 && spec(u).kind != UnitKind::Head) {
    unit.gradient = unit.output;
    live_ += unit.gradient;
  }
  if (!unit.keeps_graph) {
    touch(memory.forward_peak_bytes, "forward again", u);
    unit.saved = memory.saved_bytes;
    live_ += unit.saved + (unit.holders++ == 0 ? unit.output : 0);
  }
  touch(memory.backward_peak_bytes - unit.saved, "backward", u);
  if (!puts_off_weights) live_ -= unit.saved;
  size_t next = 0;
  for (const UnitInput& input : spec(u).inputs)
    if (runs(input.unit))
      add_gradient(u, input.unit, memory.input_gradient_bytes[next++]);
    else if (has_items(input.unit))
      ++next;
  for (const UnitInput& input : spec(u).inputs)
    if (runs(input.unit)) let_go(input.unit);
  let_go(u);
  live_ -= unit.gradient;
}

void MemoryWalk::backward_weight(size_t u) {
  live_ -= at(u).saved;
}

/// The second consumer's gradient is added to the first's in a third tensor. What another place
/// made goes back when all its readers here have made theirs.
void MemoryWalk::add_gradient(size_t u, int source, int64_t bytes) {
  Unit& of = at(source);
  if (of.gradient > 0) {
    touch(2 * bytes, "backward", u);
  } else {
    of.gradient = bytes;
    live_ += bytes;
  }
  if (--of.readers > 0 || is_here(source)) return;
  live_ -= of.gradient;
  of.gradient = 0;
}

}  // namespace zea::detail
