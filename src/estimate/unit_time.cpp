// SPDX-License-Identifier: Apache-2.0
#include "estimate/unit_time.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/step_facts.hpp"
#include "estimate/unit_memory_cache.hpp"
#include "spec/recomputed_values.hpp"

namespace zea {
namespace {

using detail::OperationNeeds;
using detail::RowCounts;

constexpr double kMicro = 1e-6;

/// The rows on one rank: under sequence parallel a slice of them.
RowCounts counts_of(const TpRows& rows) {
  const int64_t all = rows.all();
  if (!rows.dealt) return RowCounts::whole(all);
  const auto ranks = std::max<int64_t>(1, std::ssize(rows.shares));
  const int64_t here = (all + ranks - 1) / ranks;
  return {all, here, here * ranks};
}

/// Bytes that an elementwise operation reads and writes in forward.
double moved_bytes(const Operation& op, const OperationNeeds& needs) {
  auto tensors = static_cast<double>(
      1 + std::ranges::count_if(op.inputs, [](int value) { return value >= 0; }));
  if (op.kind == OperationKind::NormSum) ++tensors;  // the sum that a norm also writes
  if (op.kind == OperationKind::Gate) ++tensors;     // reads twice the columns that it writes
  if (op.kind == OperationKind::Merge) tensors = 3;  // few rows of the other inputs
  if (op.kind == OperationKind::Dropout) tensors = 2;
  return tensors * static_cast<double>(needs.memory.output);
}

constexpr double kBackwardBytes = 1.5;  ///< of elementwise operations, for a byte of forward
constexpr double kBackwardPairs = 2;    ///< of attention, for a FLOP of forward
constexpr double kLossBytes = 3;        ///< of each logit: written, read for the sum, for the loss

/// Returns the seconds of `calls` that a GEMM does not hide if each call gathers or sums a chunk.
double beyond_gemm(double calls, double gemm, int chunks) {
  return (calls + (chunks - 1) * std::max(calls - gemm, 0.0)) / chunks;
}

/// Tokens of a scan's run whose sample began on another cp rank, if states pass.
int64_t entered_tokens(const ModuleRows& rows) {
  return rows.scan && rows.scan->continues() ? rows.scan->bounds[1] : 0;
}

}  // namespace

UnitTimes::UnitTimes(const Plan& plan, const DeviceRates& rates)
    : plan_(plan),
      rates_(rates),
      gradients_(plan.model.units_with_gradient()),
      classes_(unit_classes(plan.model)) {
  for (const std::string& module : plan.model.modules()) {
    const DType type = plan.precision_of(module).param;
    if (rates.peak(type) <= 0)
      throw PlanError("the hardware file has no peak for " + std::string(dtype_name(type)) +
                      ", in which module " + module + " computes; give device." +
                      std::string(dtype_name(type)) + "_tflops, or choose another precision");
  }
}

const UnitSeconds& UnitTimes::of(int unit, const ModuleRows& rows) {
  const auto key = std::tuple(class_of(unit), rows.held.all(), rows.read.all(), rows.held.dealt,
                              rows.experts.all(rows.held.all()), entered_tokens(rows),
                              detail::pairs_of_unit(plan_.model, plan_.model.units[unit], rows));
  const auto found = known_.find(key);
  return found != known_.end() ? found->second : known_[key] = computed(unit, rows);
}

UnitSeconds UnitTimes::computed(int unit, const ModuleRows& rows) const {
  const ModelSpec& model = plan_.model;
  const UnitSpec& spec = model.units[static_cast<size_t>(unit)];
  const ModuleGrid& grid = plan_.mesh.grid(spec.module);
  const UnitTypes types = detail::unit_types(plan_, spec.module);
  detail::UnitPart part{.sizes = detail::rows_of_unit(model, spec, rows),
                        .share = {.tp = grid.tp,
                                  .tp_chunks = grid.tp_chunks,
                                  .sequence_parallel = rows.held.dealt,
                                  .ep = grid.ep(),
                                  .ep_cp = grid.ep_cp,
                                  .ep_tp = grid.ep_tp,
                                  .ep_exchanges = grid.ep_exchanges}};
  part.sizes.expert_tokens = rows.experts.all(rows.held.all());
  part.types = types;
  if (spec.kind != UnitKind::Head) part.sizes.tokens = counts_of(rows.held);
  for (const UnitInput& input : spec.inputs)
    part.inputs_need_gradient.push_back(gradients_[static_cast<size_t>(input.unit)]);
  const double peak = rates_.peak(types.param);
  const double sliced = rates_.sliced_attention_efficiency;
  const double attention_rate =
      peak * (grid.cp > grid.cp_inner && sliced > 0 ? sliced : rates_.attention_efficiency);
  const double bandwidth = 1e9 * rates_.memory_gb_per_s;
  const double pairs = detail::pairs_of_unit(model, spec, rows);
  UnitSeconds seconds;
  double launches_forward = 0, launches_backward = 0, waits = 0;
  const std::vector<OperationNeeds> all = detail::operation_needs(model, spec, part);
  seconds.gemms.resize(all.size());
  const std::vector<int> last_readers = last_readers_of_recomputed(model, spec);
  for (size_t i = 0; i < all.size(); ++i) {
    const OperationNeeds& needs = all[i];
    const Operation& op = spec.graph.operations[i];
    const bool has_kernel = op.kind != OperationKind::Input && op.kind != OperationKind::Patches &&
                            op.kind != OperationKind::Columns && !needs.is_view && !needs.is_absent;
    if (!has_kernel) continue;
    ++launches_forward;
    if (op.kind == OperationKind::GatherExpertRows) waits = grid.ep_waits();
    if (needs.has_gradient) launches_backward += needs.gemms.empty() ? 1 : 2;
    // A row of an expert is multiplied with one part of the parameters.
    const auto parts = static_cast<double>(needs.gemm_parts);
    double elements = 0, trained = 0, out = 0, in = 0;
    for (const int param : needs.gemms) {
      const Shape& shape = plan_.cuts[static_cast<size_t>(param)].shape;
      const auto here = static_cast<double>(num_elements(shape));
      elements += here / parts;
      const bool is_stacked = model.params[static_cast<size_t>(param)].stacks_experts;
      const size_t out_dim = !is_stacked ? 0 : op.order == WeightOrder::InOut ? 2 : 1;
      const double of_part = static_cast<double>(shape[out_dim]) / (is_stacked ? 1 : parts);
      out += of_part;
      in = here / (is_stacked ? parts * of_part : static_cast<double>(shape[0]));
      if (model.params[static_cast<size_t>(param)].trainable) trained += here / parts;
    }
    if (elements > 0 && needs.gemm_rows > 0) {
      const auto count = static_cast<double>(needs.gemm_rows);
      const double rate = peak * rates_.gemm_share(std::min({count / parts, out, in}));
      UnitSeconds::Gemms& gemms = seconds.gemms[i];
      gemms.output = 2 * count * elements / rate;
      if (needs.input_has_gradient) gemms.input = gemms.output;
      gemms.weight = 2 * count * trained / rate;
      seconds.forward += gemms.output;
      seconds.backward_input += gemms.input;
      seconds.backward_weight += gemms.weight;
    }
    if (needs.row_products > 0) {
      const double of_row = 2.0 * static_cast<double>(needs.row_products) / grid.tp;
      const double flops = of_row * static_cast<double>(needs.rows);
      // A sample that another rank began is scanned with the identity beside its values.
      const DeltaRuleSpec* rule = model.delta_rule(spec);
      const double more = rule
                              ? of_row * static_cast<double>(entered_tokens(rows) * rule->key_dim) /
                                    static_cast<double>(rule->value_dim)
                              : 0;
      seconds.forward += (flops + more) / attention_rate;
      if (needs.input_has_gradient) seconds.backward_input += 2 * flops / attention_rate;
    }
    if (needs.per_pair > 0) {
      const double flops = 4.0 * static_cast<double>(needs.per_pair) * pairs / grid.tp;
      seconds.attention_forward += flops / attention_rate;
      if (needs.input_has_gradient)
        seconds.attention_backward += kBackwardPairs * flops / attention_rate;
      continue;
    }
    double bytes = 0;
    if (op.kind == OperationKind::Loss) {
      bytes = kLossBytes * static_cast<double>(needs.gemm_rows) * out *
              static_cast<double>(element_bytes(types.param));
      const bool are_kept = grid.tp == 1 && keeps_logits(needs.gemm_rows, static_cast<int64_t>(out),
                                                         logit_bounds(types.on_device));
      if (needs.has_gradient && !are_kept) seconds.backward_input += seconds.gemms[i].output;
    } else if (needs.gemms.empty()) {
      bytes = moved_bytes(op, needs);
    }
    seconds.forward += bytes / bandwidth;
    if (needs.has_gradient && last_readers[static_cast<size_t>(op.output)] >= 0) {
      // A residual's sum is kept.
      const auto output = static_cast<double>(needs.memory.output);
      const double again = op.kind == OperationKind::NormSum ? 2 * output : bytes;
      seconds.selective += std::max(again / bandwidth, kMicro * rates_.launch_us);
    }
    if (needs.has_gradient) seconds.backward_input += kBackwardBytes * bytes / bandwidth;
  }
  seconds.forward += seconds.attention_forward;
  seconds.backward_input += seconds.attention_backward;
  const double launch = kMicro * rates_.launch_us;
  if (!rates_.launches_ahead) {
    seconds.forward += launches_forward * launch;
    seconds.backward_input += launches_backward * launch;
    return seconds;
  }
  // When the host has waited for counts, the device has no launches in its queue.
  seconds.forward = std::max(seconds.forward, launches_forward * launch) + waits * launch;
  const double least = launches_backward * launch;
  if (seconds.backward() < least) seconds.backward_input = least - seconds.backward_weight;
  return seconds;
}

GroupNodes nodes_of_group(int world_rank, const std::vector<int>& members,
                          const std::vector<int>& node_of) {
  std::map<int, int> on_node;
  for (const int member : members) ++on_node[node_of[static_cast<size_t>(member)]];
  GroupNodes nodes{.ranks = static_cast<int>(members.size()),
                   .nodes = static_cast<int>(on_node.size())};
  if (members.size() < 2) return nodes;
  nodes.per_node =
      std::ranges::min_element(on_node, {}, [](const auto& node) { return node.second; })->second;
  const int here = on_node[node_of[static_cast<size_t>(world_rank)]];
  nodes.elsewhere = static_cast<double>(nodes.ranks - here) / (nodes.ranks - 1);
  return nodes;
}

double call_seconds(const SentCall& call, const GroupNodes& nodes, const Hardware& hardware) {
  if (nodes.ranks <= 1) return 0;
  const bool crosses = nodes.nodes > 1;
  const LinkRates& slow = crosses ? hardware.between : hardware.inside;
  const auto bytes = static_cast<double>(call.bytes);
  const double latency = kMicro * slow.latency_us * call.messages * call.chunks;
  const double hop = kMicro * slow.hop_us * call.chunks;
  const double inside = hardware.inside.rate(call.kind);
  const double between = hardware.between.rate(call.kind);
  if (call.kind == CollectiveKind::AllToAll || call.kind == CollectiveKind::Send)
    return latency +
           std::max(bytes * (1 - nodes.elsewhere) / inside, bytes * nodes.elsewhere / between);
  const double hops = call.kind == CollectiveKind::AllReduce ? 2 * std::ceil(std::log2(nodes.ranks))
                                                             : nodes.ranks - 1;
  const double rate = crosses ? std::min(inside, nodes.per_node * between) : inside;
  return latency + hop * hops + bytes / rate;
}

double exposed_seconds(const SentCall& call, double seconds, const UnitSeconds& kernels,
                       bool overlaps) {
  if (!overlaps || call.operation < 0) return seconds;
  const UnitSeconds::Gemms& gemms = kernels.gemms[static_cast<size_t>(call.operation)];
  switch (call.sent_in) {
    case detail::SentIn::Forward:
      return beyond_gemm(seconds, gemms.output, call.chunks);
    case detail::SentIn::Backward:
      return beyond_gemm(seconds, gemms.input, call.chunks);
    case detail::SentIn::InputGradient: {
      // The gather of x for the weight's gradient goes before this sum and takes as long.
      const bool follows = gemms.weight > 0 && call.kind == CollectiveKind::ReduceScatter;
      const double gemm = std::max(0.0, gemms.input - (follows ? seconds : 0));
      return std::max(0.0, beyond_gemm(seconds, gemm, call.chunks) - gemms.weight);
    }
    case detail::SentIn::WeightGradient:
      return std::max(0.0, seconds - gemms.input);
  }
  throw InternalError("a message has no pass");
}

CallTimes::CallTimes(const Plan& plan, const std::vector<int>& node_of, const Hardware& hardware)
    : plan_(plan), node_of_(node_of), hardware_(hardware), groups_(rank_groups(plan.mesh)) {}

double CallTimes::seconds(int world_rank, const SentCall& call) {
  const auto [found, is_new] = known_.try_emplace({world_rank, call.group});
  if (is_new) found->second = nodes_of(world_rank, call.group);
  return call_seconds(call, found->second, hardware_);
}

double CallTimes::of_all_ranks(int64_t bytes) const {
  std::vector<int> all(node_of_.size());
  for (size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
  return call_seconds({"", CollectiveKind::AllReduce, bytes}, nodes_of_group(0, all, node_of_),
                      hardware_);
}

GroupNodes CallTimes::nodes_of(int world_rank, const std::string& group) const {
  for (const RankLink& link : plan_.mesh.links)
    if (group.starts_with(link.name + " ")) return nodes_of(world_rank, link);
  const auto found = std::ranges::find(groups_, group, &RankGroups::name);
  if (found == groups_.end()) throw InternalError("no group of ranks " + group);
  return nodes_of_group(world_rank, found->of(world_rank), node_of_);
}

GroupNodes CallTimes::nodes_of(int world_rank, const RankLink& link) const {
  const int inside = plan_.rank_in_replica(world_rank), first = world_rank - inside;
  const bool sends = link.from.has(inside);
  const RankRange &own = sends ? link.from : link.to, &other = sends ? link.to : link.from;
  std::vector<int> members{world_rank};
  for (int i = 0; i < other.count; ++i)
    if (link.carries_features || i == inside - own.first)
      members.push_back(first + other.first + i);
  return nodes_of_group(world_rank, members, node_of_);
}

}  // namespace zea
