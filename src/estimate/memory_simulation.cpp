// SPDX-License-Identifier: Apache-2.0
// The memory of a step over time: besides what a rank owns, the activations that units declare and
// the buffers that are gathered or not yet reduced, action by action of the engine.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "estimate/memory_estimate.hpp"
#include "estimate/memory_floor.hpp"
#include "layout/scan_plan.hpp"

namespace zea::detail {
namespace {

UnitShare unit_share(const Plan& plan, const std::string& module, bool forward_only) {
  const ModuleGrid& grid = plan.mesh.grid(module);
  const TokenSharding& tokens = plan.token_shardings.at(module);
  return {.tp = grid.tp,
          .tp_chunks = grid.tp_chunks,
          .sequence_parallel = tokens.sequence_parallel,
          .cp = grid.cp,
          .cp_inner = grid.cp_inner,
          .gathers_kv = tokens.context.exchange == KvExchange::Gather,
          .passes_states = tokens.passes_states,
          .owns_runs = owns_runs(tokens.context.distribution),
          .scans_prompts = forward_only && plan.generates(),
          .ep = grid.ep(),
          .ep_cp = grid.ep_cp,
          .ep_tp = grid.ep_tp,
          .ep_exchanges = grid.ep_exchanges};
}

class MemorySimulation {
 public:
  /// `standing` bytes are there all the time: the inputs of all microbatches.
  MemorySimulation(const Plan& plan, int group, const std::vector<MicrobatchSizes>& microbatches,
                   int64_t standing, bool forward_only, UnitMemoryCache* known);

  StepPeak run();

  /// A unit keeps these bytes of the first microbatch for its backward; none without a gradient.
  UnitBytes kept(size_t u) {
    microbatch_ = 0;
    if (!runs(u) || !at(u).needs_gradient) return {};
    const UnitMemory& memory = declared(u, true);
    return {.saved = memory.saved_bytes, .output = memory.output_bytes};
  }

 private:
  /// A unit's output in a microbatch, made here or received.
  struct Unit {
    int holders = 0;  ///< of the output: consumers to come, the graph, inputs kept for backward
    int64_t output = 0, saved = 0, gradient = 0;
    int64_t leaving = 0;  ///< on its way to another stage group, beside what is counted above
    bool needs_gradient = false, keeps_graph = false;
  };

  const UnitSpec& spec(size_t u) const { return plan_.model.units[u]; }
  bool is_here(size_t u) const {
    return plan_.pipeline.group_of_unit(static_cast<int>(u)) == group_;
  }
  Unit& at(size_t u) { return units_[microbatch_][u]; }
  bool has_items(size_t u) const;
  /// Cached units do not in steps: what they would have made stands there from the start.
  bool runs(size_t u) const;
  const UnitMemory& declared(size_t u, bool keeps_graph);
  UnitMemory declare(size_t u, bool keeps_graph);
  MicrobatchSizes module_sizes(size_t u) const;
  void prepare();
  std::vector<Action> actions() const;
  void take(const Action& action);
  void touch(int64_t bytes, const char* what, const std::string& name, int64_t scratch = 0);
  int64_t shard_bytes(int buffer, DType type) const;
  void gather(int buffer);
  void wait_for(size_t u);
  void reduce(int buffer);
  void convert(int buffer);
  void let_go(size_t u);
  void receive(size_t u);
  void forward(size_t u);
  void leave(size_t u, int64_t bytes);
  void send(size_t u);
  void send_gradient(size_t u);
  void receive_gradient(size_t u);
  void backward(size_t u, bool puts_off_weights);
  void backward_weight(size_t u);
  void add_gradient(size_t u, int source, int64_t bytes);

  const Plan& plan_;
  UnitMemoryCache* known_;  ///< may be null
  const int group_;
  const std::vector<MicrobatchSizes>& microbatches_;
  const bool forward_only_;
  std::vector<std::vector<Unit>> units_;  ///< [microbatch][unit]
  std::vector<size_t> kind_of_;           ///< of each microbatch
  /// [kind of microbatch and unit][whether it keeps its graph]
  std::vector<std::array<std::optional<UnitMemory>, 2>> declared_;
  std::vector<int> readers_;      ///< of each unit's output, at this stage group
  std::vector<Unit*> last_sent_;  ///< of each unit, whose output or gradient left last
  std::vector<std::vector<int>> buffers_of_unit_;
  std::vector<int64_t> sent_;    ///< of each buffer: what is on the device while it is gathered
  std::vector<bool> is_summed_;  ///< of each buffer: it was reduced in this step
  int64_t arriving_ = 0;         ///< in the reduction that is under way
  size_t microbatch_ = 0;        ///< under way
  int64_t live_;
  StepPeak peak_;
};

MemorySimulation::MemorySimulation(const Plan& plan, int group,
                                   const std::vector<MicrobatchSizes>& microbatches,
                                   int64_t standing, bool forward_only, UnitMemoryCache* known)
    : plan_(plan),
      known_(known),
      group_(group),
      microbatches_(microbatches),
      forward_only_(forward_only),
      units_(microbatches.size(), std::vector<Unit>(plan.model.units.size())),
      readers_(plan.model.units.size(), 0),
      last_sent_(plan.model.units.size(), nullptr),
      buffers_of_unit_(buffers_of_units(plan.model, plan.buffers)),
      sent_(plan.buffers.size(), 0),
      is_summed_(plan.buffers.size(), false),
      live_(standing) {
  for (size_t u = 0; u < readers_.size(); ++u)
    if (is_here(u) && !(forward_only_ && spec(u).is_mtp))
      for (const UnitInput& input : spec(u).inputs) ++readers_[input.unit];
  for (microbatch_ = 0; microbatch_ < units_.size(); ++microbatch_) {
    const bool is_alike =
        microbatch_ > 0 && microbatches_[microbatch_] == microbatches_[microbatch_ - 1];
    kind_of_.push_back(microbatch_ == 0 ? 0 : kind_of_.back() + (is_alike ? 0 : 1));
    prepare();
  }
  if (!kind_of_.empty()) declared_.resize((kind_of_.back() + 1) * plan.model.units.size());
}

void MemorySimulation::prepare() {
  for (size_t u = 0; u < readers_.size(); ++u) {
    if (!runs(u)) continue;
    at(u).needs_gradient = !forward_only_ && plan_.model.trains(spec(u).params);
    for (const UnitInput& input : spec(u).inputs)
      at(u).needs_gradient = at(u).needs_gradient || at(input.unit).needs_gradient;
  }
}

StepPeak MemorySimulation::run() {
  for (const Action& action : actions()) take(action);
  return peak_;
}

/// The actions of the first rank at the stage group, which has items wherever any rank has, where
/// all replicas have these microbatches.
std::vector<Action> MemorySimulation::actions() const {
  std::vector<MicrobatchPlan> planned;
  for (const MicrobatchSizes& sizes : microbatches_)
    planned.push_back({.samples = std::vector<int64_t>(static_cast<size_t>(sizes.samples)),
                       .tokens = sizes.tokens,
                       .targets = sizes.targets,
                       .items = sizes.items,
                       .expert_tokens = {sizes.expert_tokens}});
  const int rank = plan_.pipeline.stage_groups[static_cast<size_t>(group_)].first_rank;
  return plan_.rank_step(count_step({planned}, 1), rank, forward_only_).schedule.actions;
}

void MemorySimulation::take(const Action& action) {
  const auto u = static_cast<size_t>(action.unit);
  microbatch_ = static_cast<size_t>(action.microbatch);
  switch (action.kind) {
    case ActionKind::Unshard:
      return gather(action.buffer);
    case ActionKind::Forward:
      return forward(u);
    case ActionKind::Receive:
      return receive(u);
    case ActionKind::ReceiveGradient:
      return receive_gradient(u);
    case ActionKind::Send:
      return send(u);
    case ActionKind::SendGradient:
      return send_gradient(u);
    case ActionKind::Backward:
    case ActionKind::BackwardInput:
      return backward(u, action.kind == ActionKind::BackwardInput);
    case ActionKind::BackwardWeight:
      return backward_weight(u);
    case ActionKind::ReduceShard:
      return reduce(action.buffer);
    case ActionKind::ReduceReplicas:
      return convert(action.buffer);
    default:
      return;
  }
}

bool MemorySimulation::runs(size_t u) const {
  const bool does = forward_only_ ? !spec(u).is_mtp : !plan_.model.is_cached(static_cast<int>(u));
  return does && has_items(u);
}

bool MemorySimulation::has_items(size_t u) const {
  const MicrobatchSizes& sizes = microbatches_[microbatch_];
  return spec(u).encoder < 0 || sizes.items.of(spec(u).encoder) > 0;
}

/// Neighboring microbatches of equal sizes share what was declared for the first of them.
const UnitMemory& MemorySimulation::declared(size_t u, bool keeps_graph) {
  std::optional<UnitMemory>& known =
      declared_[kind_of_[microbatch_] * units_[0].size() + u][keeps_graph ? 1 : 0];
  if (!known) known = declare(u, keeps_graph);
  return *known;
}

UnitMemory MemorySimulation::declare(size_t u, bool keeps_graph) {
  UnitCall call{.keeps_graph = keeps_graph,
                .inputs_need_gradient = {},
                .inputs_present = {},
                .is_selective = keeps_graph && plan_.recomputed[u] == Recompute::Selective};
  for (const UnitInput& input : spec(u).inputs) {
    call.inputs_need_gradient.push_back(at(input.unit).needs_gradient);
    call.inputs_present.push_back(has_items(input.unit));
  }
  const UnitShare share = unit_share(plan_, spec(u).module, forward_only_);
  const auto compute = [&] {
    return unit_memory(plan_.model, spec(u), module_sizes(u), unit_types(plan_, spec(u).module),
                       call, share);
  };
  if (known_ == nullptr) return compute();
  return known_->of(u, share, plan_.mesh.grid(spec(u).module).encoder_dp, call, compute);
}

/// The sizes for the ranks that share the unit's tokens: an encoder's items are distributed over
/// encoder_dp groups of ranks.
MicrobatchSizes MemorySimulation::module_sizes(size_t u) const {
  const std::string& module = spec(u).module;
  const MicrobatchSizes& sizes = microbatches_[microbatch_];
  if (module == kDecoder) return sizes;
  return with_items(
      plan_.model, sizes,
      largest_share(plan_.model, sizes.items, spec(u).encoder, plan_.mesh.grid(module).encoder_dp));
}

void MemorySimulation::touch(int64_t bytes, const char* what, const std::string& name,
                             int64_t scratch) {
  if (live_ + bytes > peak_.bytes) peak_ = {live_ + bytes, scratch, what + (" " + name)};
}

int64_t MemorySimulation::shard_bytes(int buffer, DType type) const {
  const int shards = plan_.shardings[buffer].shards;
  return plan_.buffers[buffer].padded(shards) / shards * static_cast<int64_t>(element_bytes(type));
}

/// An offloaded shard that others need is on the device until a unit waits for the whole.
void MemorySimulation::gather(int buffer) {
  const Sharding& sharding = plan_.shardings[buffer];
  if (!sharding.offloads || sharding.shards == 1) return;
  const FlatBuffer& layout = plan_.buffers[buffer];
  sent_[buffer] = shard_bytes(buffer, plan_.precision_of(layout.module).param);
  live_ += sent_[buffer];
  touch(0, "gathering", layout.name);
}

void MemorySimulation::wait_for(size_t u) {
  for (const int buffer : buffers_of_unit_[u]) live_ -= std::exchange(sent_[buffer], 0);
}

/// A shard arrives to be added to the owned gradient, and is there until the next reduction starts.
/// The first of a step arrives in place where it travels in the owned type; none that is offloaded
/// does.
void MemorySimulation::reduce(int buffer) {
  const Sharding& sharding = plan_.shardings[buffer];
  const Precision& precision = plan_.precision_of(plan_.buffers[buffer].module);
  const bool in_place =
      !is_summed_[buffer] && precision.reduce == precision.master && !sharding.offloads;
  live_ -= arriving_;
  arriving_ = sharding.shards > 1 && !in_place ? shard_bytes(buffer, precision.reduce) : 0;
  live_ += arriving_;
  is_summed_[buffer] = true;
  if (arriving_ > 0) convert(buffer);
}

/// A sum that is offloaded is made the master's type on the device.
void MemorySimulation::convert(int buffer) {
  const FlatBuffer& layout = plan_.buffers[buffer];
  const Precision& precision = plan_.precision_of(layout.module);
  const bool converts = plan_.shardings[buffer].offloads && precision.reduce != precision.master;
  touch(converts ? shard_bytes(buffer, precision.master) : 0, "reducing", layout.name);
}

void MemorySimulation::let_go(size_t u) {
  if (--at(u).holders == 0) live_ -= at(u).output;
}

void MemorySimulation::receive(size_t u) {
  at(u).output = declared(u, false).output_bytes;
  at(u).holders = readers_[u];
  live_ += at(u).output;
}

void MemorySimulation::forward(size_t u) {
  wait_for(u);
  Unit& unit = at(u);
  unit.keeps_graph = unit.needs_gradient && !plan_.recomputes(static_cast<int>(u));
  const UnitMemory& memory = declared(u, unit.keeps_graph);
  touch(memory.forward_peak_bytes, "forward", spec(u).name, memory.forward_scratch_bytes);
  unit.output = memory.output_bytes;
  unit.saved = unit.keeps_graph ? memory.saved_bytes : 0;
  unit.holders = readers_[u] + (unit.keeps_graph ? 1 : 0);
  live_ += unit.saved + (unit.holders > 0 ? unit.output : 0);
  // A consumer's reference becomes the input that its backward reads.
  for (const UnitInput& input : spec(u).inputs)
    if (runs(input.unit) && !unit.needs_gradient) let_go(input.unit);
}

/// It may be under way until the unit's next does.
void MemorySimulation::leave(size_t u, int64_t bytes) {
  if (last_sent_[u] != nullptr) live_ -= std::exchange(last_sent_[u]->leaving, 0);
  last_sent_[u] = &at(u);
  at(u).leaving = bytes;
  live_ += bytes;
}

/// Features go as a copy of their rows, others as they are, which may be held here anyway.
void MemorySimulation::send(size_t u) {
  const Precision& precision = plan_.precision_of(spec(u).module);
  if (plan_.model.makes_features(static_cast<int>(u)))
    leave(u, at(u).output / static_cast<int64_t>(element_bytes(precision.param)) *
                 static_cast<int64_t>(element_bytes(precision.output)));
  else
    leave(u, at(u).holders > 0 ? 0 : at(u).output);
  touch(0, "sending", spec(u).name);
}

void MemorySimulation::send_gradient(size_t u) {
  live_ -= at(u).gradient;
  leave(u, std::exchange(at(u).gradient, 0));
}

void MemorySimulation::receive_gradient(size_t u) {
  const int64_t bytes = declared(u, true).output_bytes;
  at(u).gradient += bytes;
  live_ += bytes;
}

void MemorySimulation::backward(size_t u, bool puts_off_weights) {
  wait_for(u);
  Unit& unit = at(u);
  live_ -= std::exchange(unit.leaving, 0);  // it was read
  const UnitMemory& memory = declared(u, true);
  if (!unit.keeps_graph) {
    touch(memory.forward_peak_bytes, "forward again", spec(u).name, memory.forward_scratch_bytes);
    unit.saved = memory.saved_bytes;
    live_ += unit.saved + (unit.holders++ == 0 ? unit.output : 0);
  }
  touch(memory.backward_peak_bytes - unit.saved, "backward", spec(u).name,
        memory.backward_scratch_bytes);
  // Deferred weight gradients read what was recomputed.
  live_ += puts_off_weights ? memory.recomputed_bytes : -unit.saved;
  unit.saved += memory.recomputed_bytes;
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

void MemorySimulation::backward_weight(size_t u) {
  wait_for(u);
  live_ -= at(u).saved;
}

/// The second consumer's gradient is added to the first's in a third tensor.
void MemorySimulation::add_gradient(size_t u, int source, int64_t bytes) {
  Unit& of = at(source);
  if (of.gradient > 0) return touch(2 * bytes, "backward", spec(u).name);
  of.gradient = bytes;
  live_ += bytes;
}

}  // namespace

UnitTypes unit_types(const Plan& plan, const std::string& module) {
  const Precision& precision = plan.precision_of(module);
  return {precision.param, precision.master, plan.options.run.device != DeviceKind::Cpu,
          plan.options.run.threads};
}

std::vector<UnitBytes> bytes_of_units(const Plan& plan, UnitMemoryCache& known) {
  const std::vector<MicrobatchSizes> full{known.microbatch()};
  std::vector<UnitBytes> units(plan.model.units.size());
  Plan tried = plan;
  for (const Recompute what : {Recompute::Selective, Recompute::None}) {
    tried.recomputed.assign(units.size(), what);
    MemorySimulation simulation(tried, 0, full, 0, false, &known);
    for (size_t u = 0; u < units.size(); ++u) {
      if (plan.model.units[u].module != kDecoder) continue;
      const int64_t before = units[u].saved;
      units[u] = simulation.kept(u);
      units[u].saved_selective = before;
    }
  }
  // 8-bit states are sharded in whole blocks, and Muon's are not alike for all parameters: neither
  // is spread evenly over ranks.
  const OptimizerKind kind = plan.options.optim.kind;
  const bool is_even = kind != OptimizerKind::Muon && kind != OptimizerKind::Adamw8Bit;
  const ModuleGrid& grid = plan.mesh.grid(kDecoder);
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    const FlatBuffer& buffer = plan.buffers[g];
    if (buffer.module != kDecoder || !buffer.is_computed_with() || plan.shardings[g].offloads)
      continue;
    if (buffer.units.size() > 1) continue;  // other stages may hold some of them
    const Precision& precision = plan.precision_of(buffer.module);
    int64_t bytes = buffer.elements * owned_bytes(precision, buffer.trainable, true).total();
    if (buffer.trainable && is_even)
      bytes += state_bytes(plan.optimizer, buffer, plan.param_rules, {0, buffer.elements},
                           precision.master);
    const int pieces = plan.tp_pieces(static_cast<int>(g)) * (buffer.is_over_ep ? grid.ep() : 1);
    units[static_cast<size_t>(buffer.units.front())].owned += static_cast<double>(bytes) * pieces;
  }
  return units;
}

StepPeak peak_of_step(const Plan& plan, int group, const std::vector<MicrobatchSizes>& microbatches,
                      int64_t standing, bool forward_only, UnitMemoryCache* known) {
  const bool knows = known != nullptr && std::ranges::all_of(microbatches, [&](const auto& sizes) {
                       return sizes == known->microbatch();
                     });
  return MemorySimulation(plan, group, microbatches, standing, forward_only,
                          knows ? known : nullptr)
      .run();
}

}  // namespace zea::detail
