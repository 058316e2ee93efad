// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/memory_estimate.hpp"

#include <algorithm>

namespace zea {
namespace {

int64_t bytes_of(DType dtype) {
  return static_cast<int64_t>(element_bytes(dtype));
}

UnitTypes unit_types(const Plan& plan, const std::string& module) {
  const Precision& precision = plan.precision_of(module);
  return {precision.param, precision.master, plan.options.run.threads};
}

UnitShare unit_share(const Plan& plan, const std::string& module) {
  const ModuleGrid& grid = plan.mesh.grid(module);
  const TokenSharding& tokens = plan.token_shardings.at(module);
  return {.tp = grid.tp,
          .sequence_parallel = tokens.sequence_parallel,
          .cp = grid.cp,
          .cp_inner = grid.cp_inner,
          .gathers_keys = tokens.context.exchange == KeyExchange::Gather};
}

/// The engine's walk over one microbatch, on paper.
class PaperWalk {
 public:
  PaperWalk(const Plan& plan, const MicrobatchSizes& sizes, int64_t inputs)
      : plan_(plan), sizes_(sizes), units_(plan.model.units.size()), live_(inputs) {
    for (const UnitSpec& unit : plan.model.units)
      for (const UnitInput& input : unit.inputs) ++units_[input.unit].consumers;
  }

  void run() {
    for (size_t u = 0; u < units_.size(); ++u)
      if (runs(u)) forward(u);
    for (size_t u = units_.size(); u-- > 0;)
      if (units_[u].needs_gradient) backward(u);
  }
  int64_t peak() const { return peak_; }
  const std::string& peak_at() const { return peak_at_; }

 private:
  struct Unit {
    int consumers = 0;
    int holders = 0;  ///< of the output: consumers to come, the graph, inputs kept for backward
    int64_t output = 0, saved = 0, gradient = 0;
    bool needs_gradient = false, keeps_graph = false;
  };

  const UnitSpec& spec(size_t u) const { return plan_.model.units[u]; }
  bool runs(size_t u) const { return spec(u).module == "vision" ? sizes_.items > 0 : true; }
  bool recomputes(size_t u) const {
    const int64_t every = plan_.options.model.activation_checkpointing;
    return every > 0 && static_cast<int64_t>(u) % every == 0 && spec(u).kind != UnitKind::Head;
  }
  bool trains(size_t u) const {
    return std::any_of(spec(u).params.begin(), spec(u).params.end(),
                       [&](int param) { return plan_.model.params[param].trainable; });
  }

  UnitMemory declared(size_t u, bool keeps_graph) const {
    UnitCall call{.keeps_graph = keeps_graph, .inputs_need_gradient = {}, .inputs_present = {}};
    for (const UnitInput& input : spec(u).inputs) {
      call.inputs_need_gradient.push_back(units_[input.unit].needs_gradient);
      call.inputs_present.push_back(runs(input.unit));
    }
    return unit_memory(plan_.model, spec(u), module_sizes(u), unit_types(plan_, spec(u).module),
                       call, unit_share(plan_, spec(u).module));
  }

  /// Of the ranks that share the unit's tokens: an encoder's images are dealt to dp_module groups
  /// of them.
  MicrobatchSizes module_sizes(size_t u) const {
    MicrobatchSizes sizes = sizes_;
    if (spec(u).module == "vision") {
      const int64_t groups = plan_.mesh.grid("vision").dp_module;
      sizes.items = (sizes.items + groups - 1) / groups;
      sizes.images = image_attention_sizes(plan_.model, sizes.items);
    }
    return sizes;
  }

  void touch(int64_t bytes, const char* what, size_t u) {
    if (live_ + bytes <= peak_) return;
    peak_ = live_ + bytes;
    peak_at_ = std::string(what) + " " + spec(u).name;
  }
  void let_go(size_t u) {
    if (--units_[u].holders == 0) live_ -= units_[u].output;
  }

  void forward(size_t u) {
    Unit& unit = units_[u];
    unit.needs_gradient = trains(u);
    for (const UnitInput& input : spec(u).inputs)
      unit.needs_gradient = unit.needs_gradient || units_[input.unit].needs_gradient;
    unit.keeps_graph = unit.needs_gradient && !recomputes(u);
    const UnitMemory memory = declared(u, unit.keeps_graph);
    touch(memory.forward_peak_bytes, "forward", u);
    unit.output = memory.output_bytes;
    unit.saved = unit.keeps_graph ? memory.saved_bytes : 0;
    unit.holders = unit.consumers + (unit.keeps_graph ? 1 : 0);
    live_ += unit.saved + (unit.holders > 0 ? unit.output : 0);
    // A consumer's reference becomes the input that its backward reads.
    for (const UnitInput& input : spec(u).inputs)
      if (runs(input.unit) && !unit.needs_gradient) let_go(input.unit);
  }

  void backward(size_t u) {
    Unit& unit = units_[u];
    const UnitMemory memory = declared(u, true);
    if (!unit.keeps_graph) {
      touch(memory.forward_peak_bytes, "forward again", u);
      unit.saved = memory.saved_bytes;
      live_ += unit.saved + (unit.holders++ == 0 ? unit.output : 0);
    }
    touch(memory.backward_peak_bytes - unit.saved, "backward", u);
    live_ -= unit.saved;
    size_t next = 0;
    for (const UnitInput& input : spec(u).inputs)
      if (runs(input.unit)) add_gradient(u, input.unit, memory.input_gradient_bytes[next++]);
    for (const UnitInput& input : spec(u).inputs)
      if (runs(input.unit)) let_go(input.unit);
    let_go(u);
    live_ -= unit.gradient;
  }

  /// The second consumer's gradient is added to the first's in a third tensor.
  void add_gradient(size_t u, int source, int64_t bytes) {
    if (units_[source].gradient > 0) {
      touch(2 * bytes, "backward", u);
      return;
    }
    units_[source].gradient = bytes;
    live_ += bytes;
  }

  const Plan& plan_;
  const MicrobatchSizes& sizes_;
  std::vector<Unit> units_;
  int64_t live_ = 0, peak_ = 0;
  std::string peak_at_;
};

void add_owned(MemoryEstimate& estimate, const Plan& plan, size_t g) {
  const FlatGroup& group = plan.groups[g];
  const Sharding& sharding = plan.shardings[g];
  const Precision& precision = plan.precision_of(group.module);
  const int64_t padded = group.padded(sharding.shards), own = padded / sharding.shards;
  const int64_t master = bytes_of(precision.master), param = bytes_of(precision.param);
  estimate.parameters += own * master;
  if (precision.param != precision.master && !group.units.empty())
    estimate.parameters += own * param;
  if (sharding.subgroup > 0 && !group.units.empty())
    estimate.gathered += padded / sharding.subgroup * param;
  if (!group.trainable) return;
  estimate.moments += 2 * own * master;
  estimate.gradients += own * master;
  if (sharding.replicas > 1 && precision.reduce != precision.master)
    estimate.gathered += own * bytes_of(precision.reduce);
}

/// The largest shard that arrives to be added to the owned gradient; one is under way at a time.
/// The first of a step arrives in place where it travels in the owned type.
int64_t received_bytes(const Plan& plan, size_t microbatches) {
  int64_t largest = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const FlatGroup& group = plan.groups[g];
    const Precision& precision = plan.precision_of(group.module);
    const int shards = plan.shardings[g].shards;
    if (!group.trainable || shards == 1) continue;
    if (microbatches > 1 || precision.reduce != precision.master)
      largest = std::max(largest, group.padded(shards) / shards * bytes_of(precision.reduce));
  }
  return largest;
}

}  // namespace

MicrobatchSizes full_microbatch(const Plan& plan) {
  SampleIndex row{.tokens = plan.options.data.row_tokens, .targets = plan.options.data.row_tokens};
  if (plan.model.vision) row.items = row.tokens / plan.model.vision->features();
  return microbatch_sizes(plan.model,
                          std::vector<SampleIndex>(plan.options.data.rows_per_microbatch, row));
}

MemoryEstimate estimate_memory(const Plan& plan, const std::vector<MicrobatchSizes>& microbatches) {
  MemoryEstimate estimate;
  for (size_t g = 0; g < plan.groups.size(); ++g) add_owned(estimate, plan, g);
  estimate.gathered += received_bytes(plan, microbatches.size());
  estimate.gathered += plan.slots.gathered.total_bytes() + plan.slots.gradients.total_bytes() +
                       plan.slots.wire.total_bytes();
  int64_t inputs = 0;
  for (const MicrobatchSizes& sizes : microbatches)
    inputs +=
        microbatch_bytes(plan.model, sizes, unit_types(plan, "llm"), unit_types(plan, "vision"));
  for (const MicrobatchSizes& sizes : microbatches) {
    if (sizes.tokens == 0) continue;
    PaperWalk walk(plan, sizes, inputs);
    walk.run();
    if (walk.peak() <= estimate.activations) continue;
    estimate.activations = walk.peak();
    estimate.peak_at = walk.peak_at();
  }
  return estimate;
}

MemoryEstimate estimate_memory(const Plan& plan, const StepPlan& step, int replica,
                               const std::vector<SampleIndex>& index) {
  std::vector<MicrobatchSizes> microbatches;
  for (const MicrobatchPlan& part : step.replicas[replica]) {
    std::vector<SampleIndex> samples;
    for (int64_t id : part.samples) samples.push_back(index[id]);
    microbatches.push_back(microbatch_sizes(plan.model, samples));
  }
  return estimate_memory(plan, microbatches);
}

MemoryEstimate estimate_memory(const Plan& plan) {
  return estimate_memory(plan, {full_microbatch(plan)});
}

}  // namespace zea
