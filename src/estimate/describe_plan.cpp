// SPDX-License-Identifier: Apache-2.0
// The plan as text: the output of `zea -n`.
#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "estimate/describe.hpp"
#include "estimate/fitting_plan.hpp"
#include "estimate/plan_notes.hpp"
#include "layout/reduction.hpp"
#include "spec/expert_needs.hpp"

namespace zea {
namespace {

using detail::mebibytes;

std::string pad(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string rank_line(const Plan& plan, int rank) {
  std::string line = "  rank " + std::to_string(rank) + ":";
  for (const ModuleGrid& grid : plan.mesh.modules) {
    if (!plan.mesh.has(rank, grid.module)) continue;
    const Coordinate coordinate = plan.mesh.coordinate(rank, grid.module);
    line += "  " + grid.module + "(";
    for (int a = 0; a < kNumAxes; ++a) {
      const Axis axis = static_cast<Axis>(a);
      line += std::string(a ? " " : "") + axis_name(axis) + "=" +
              std::to_string(coordinate.along(axis));
    }
    if (grid.ep() > 1)
      line += " ep=" + std::to_string(plan.mesh.rank_along(rank, grid.module, ep_axes(grid)));
    line += ")";
  }
  return line + "\n";
}

/// Every rank, or of many one replica, as the others are like it, and the last.
std::string rank_map(const Plan& plan) {
  std::string text = "ranks\n";
  if (plan.world_size() <= detail::kMostListed) {
    for (int rank = 0; rank < plan.world_size(); ++rank) text += rank_line(plan, rank);
    return text;
  }
  std::vector<int> replica(plan.mesh.ranks_per_replica());
  std::iota(replica.begin(), replica.end(), 0);
  return text + "  replica 0 of " + std::to_string(plan.mesh.replicas()) +
         ", whose ranks follow each other; in brackets those of a tp group\n" +
         detail::draw_ranks(plan.mesh, replica) + rank_line(plan, plan.world_size() - 1);
}

/// Says which ranks share experts, if any do, and how tokens are dispatched to them.
std::string ep_text(const Plan& plan, const ModuleGrid& grid) {
  if (grid.ep() == 1) return "";
  const double share = detail::chosen_share(plan.model, grid.ep());
  std::string text = ", ep " + std::to_string(grid.ep()) + " (" +
                     (grid.ep_tp > 1 ? std::to_string(grid.ep_tp) + " tp ranks of " : "") +
                     std::to_string(grid.ep_cp) + " cp ranks of " +
                     std::to_string(grid.ep_dp_shard) + " replicas share experts)";
  if (grid.ep_token_ranks() == 1) return text;
  text += ", dispatch by ";
  if (!grid.ep_exchanges)
    return text + formatted("all-gather (all-to-all: about %.0f %% of its bytes)",
                            100 * detail::dispatch_ratio(plan.model, grid.ep_cp, grid.ep_dp_shard,
                                                         grid.ep_tp));
  return text +
         formatted("all-to-all (expected: %.2f of %d ranks per token; ", grid.ep() * share,
                   grid.ep()) +
         "in each mixture's forward the host waits " + (grid.ep_waits() == 1 ? "once" : "twice") +
         " for counts of rows)";
}

/// Returns how cp ranks scan for mixers that carry a state.
std::string scan_text(const Plan& plan, const ModuleGrid& grid) {
  if (!plan.model.block(grid.module).carries_state()) return "";
  return plan.token_shardings.at(grid.module).passes_states
             ? "; Gated DeltaNet passes states"
             : "; Gated DeltaNet exchanges tokens for heads";
}

/// How each module lies on the ranks of a replica, where there are several.
std::string module_lines(const Plan& plan) {
  std::string text;
  for (const ModuleGrid& grid : plan.mesh.modules) {
    if (grid.ranks() == 1 && grid.ep() == 1) continue;
    const ModuleMeshOptions& mesh = plan.options.meshes[grid.module];
    text += "  " + grid.module + ": tp " + std::to_string(grid.tp);
    if (grid.tp > 1)
      text += plan.token_shardings.at(grid.module).sequence_parallel ? " (sequence parallel)"
                                                                     : " (every rank all tokens)";
    if (const int64_t most = grid.tp_chunks.most; most > 1)
      text += " in " + std::to_string(most) + " chunks";
    text += " x cp " + std::to_string(grid.cp);
    // Where all ranks exchange heads, makespan_min has nothing to balance.
    const bool deals_evenly =
        grid.cp_inner == grid.cp && mesh.cp_distribution == TokenDistribution::MakespanMin;
    if (grid.cp > 1)
      text += " (" + mesh.cp_mode + ", " +
              (deals_evenly ? "equal runs" : mesh.cp_distribution.name()) + scan_text(plan, grid) +
              ")";
    text += " x encoder_dp " + std::to_string(grid.encoder_dp) + ep_text(plan, grid) + "\n";
  }
  return text.empty() ? text : "modules, on the ranks of a replica\n" + text;
}

std::string unit_table(const Plan& plan) {
  std::string text = "units\n  " + pad("name", 20) + pad("kind", 17) + pad("parameters", 13) +
                     pad("trained", 13) + "strategy\n";
  for (const UnitSpec& unit : plan.model.units) {
    int64_t all = 0, trained = 0;
    for (int param : unit.params) {
      const int64_t elements = num_elements(plan.model.params[param].shape);
      all += elements;
      if (plan.model.params[param].trainable) trained += elements;
    }
    const ModuleMeshOptions& mesh = plan.options.meshes[unit.module];
    text += "  " + pad(unit.name, 20) + pad(unit_kind_name(unit.kind), 17) +
            pad(std::to_string(all), 13) + pad(std::to_string(trained), 13) + mesh.strategy + "\n";
  }
  return text;
}

/// The bytes that each microbatch adds that a step may have beyond the predicted ones.
std::string further_bytes(const Plan& plan, const std::vector<MemoryEstimate>& predicted,
                          int64_t microbatches) {
  if (microbatches >= most_microbatches(plan)) return "";
  const auto with_another = estimate_groups(plan, microbatches + 1);
  int64_t further = 0;
  for (size_t p = 0; p < predicted.size(); ++p)
    further = std::max(further, with_another[p].total() - predicted[p].total());
  return " (each further one: " + mebibytes(further) + ")";
}

std::string memory_lines(const Plan& plan) {
  const int64_t microbatches = predicted_microbatches(plan);
  const auto predicted = estimate_groups(plan, microbatches);
  std::string text =
      "bytes per rank, of all tensors, at most: with " + std::to_string(microbatches) +
      (microbatches == 1 ? " microbatch" : " microbatches") + " of full rows in a step" +
      (plan.mesh.grid(kDecoder).ep() > 1 ? " whose tokens all choose the experts of one rank"
                                         : "") +
      further_bytes(plan, predicted, microbatches) + "\n";
  for (size_t p = 0; p < predicted.size(); ++p)
    text +=
        (plan.pipeline.is_one_group() ? "  " : "  " + plan.pipeline.stage_groups[p].name + ": ") +
        describe(predicted[p]) + "\n";
  return text;
}

/// The bytes of cached features of one item; how many items there are the plan does not know.
std::string kept_feature_lines(const Plan& plan) {
  std::string text;
  for (const EncoderSpec& encoder : plan.model.encoders) {
    if (!encoder.is_cached) continue;
    const bool is_audio = encoder.modality() == Modality::Audio;
    const int64_t width = plan.model.feature_width(plan.model.encoder_index(encoder.name)),
                  tokens = encoder.item_shape().tokens;
    const DType type = plan.precision_of(encoder.name).param;
    text += "features of " + encoder.name + " are computed once, before the first step, into " +
            plan.options.data.cache_features + "/" + encoder.name + ", if they are not there: " +
            mebibytes(tokens * width * static_cast<int64_t>(element_bytes(type))) + " for each " +
            (is_audio ? "clip" : "image") + (encoder.varies() ? " at most" : "") + " (" +
            std::to_string(tokens) + " tokens x " + std::to_string(width) + ", " +
            dtype_name(type) + "); steps read them, and run its projector alone\n";
  }
  return text;
}

/// Whole samples are distributed over replicas: with more replicas than samples some are idle.
std::string idle_warning(const Plan& plan) {
  const Options& options = plan.options;
  const int64_t replicas = plan.mesh.replicas(), each = plan.mesh.ranks_per_replica();
  const bool trains = options.run.mode == RunMode::Train;
  int64_t batch = options.schedule.global_batch;
  if (!trains && options.eval.samples > 0) batch = std::min(batch, options.eval.samples);
  if (batch >= replicas) return "";
  const std::string samples = std::to_string(batch);
  return "warning: " + std::to_string((replicas - batch) * each) + " of " +
         std::to_string(plan.world_size()) + " ranks have nothing to compute: " + samples +
         (batch == 1 ? " sample" : " samples") + " of a batch for " + std::to_string(replicas) +
         " replicas; raise schedule.global_batch to " + std::to_string(replicas) +
         " or a multiple of it" +
         (trains || options.eval.samples == 0 ? "" : " (and eval.samples)") + ", start " +
         std::to_string(batch * each) + " ranks, or put more ranks into a replica (mesh." +
         kDecoder + ".tp, cp or pp)\n";
}

std::string graph_line(const Plan& plan) {
  const RunOptions& run = plan.options.run;
  if (run.cuda_graphs == 0 || run.mode != RunMode::Train) return "";
  return "graphs: of the latest " + std::to_string(run.cuda_graphs) +
         " shapes of steps, each launched by one call from its second step on; activations take "
         "their memory again where other steps come between\n";
}

std::string describe_ends(const Plan& plan) {
  const EvalOptions& eval = plan.options.eval;
  const std::vector<int64_t> asked{eval.stop_tokens.begin(), eval.stop_tokens.end()};
  std::string text = "generated texts end at ";
  for (const std::string& stop : eval.stop_texts) text += nlohmann::json(stop).dump() + ", ";
  text += "token";
  const std::vector<int64_t>& tokens = asked.empty() ? plan.model.decoder.end_tokens : asked;
  for (const int64_t token : tokens) text += " " + std::to_string(token);
  return text + (asked.empty() ? " (the model's eos_token_id)" : " (eval.stop_tokens)") + "\n";
}

}  // namespace

std::string describe_generation(const Plan& plan) {
  if (!plan.generates()) return "";
  int64_t bytes = 0, of_sample = 0;
  for (int rank = 0; rank < plan.mesh.ranks_per_replica(); ++rank) {
    bytes = std::max(bytes, kv_bytes_per_token(plan, rank));
    of_sample = std::max(of_sample, state_bytes_per_sample(plan, rank));
  }
  const int64_t samples = kept_samples(plan), tokens = kept_tokens(plan);
  const std::string states =
      of_sample == 0 ? ""
                     : formatted("states that generation keeps: %.1f KiB a sample and rank\n",
                                 static_cast<double>(of_sample) / 1024);
  return formatted(
             "keys that generation keeps: %.1f KiB a token and rank, so at most %.1f MiB for %ld "
             "samples of %ld tokens\n",
             static_cast<double>(bytes) / 1024,
             static_cast<double>(bytes * samples * tokens) / (1 << 20), static_cast<long>(samples),
             static_cast<long>(tokens)) +
         states + describe_ends(plan) +
         (plan.world_size() > 1
              ? "what generation sends is not predicted; a training step's bytes are\n"
              : "");
}

std::string describe(const MemoryEstimate& memory) {
  return "parameters " + mebibytes(memory.parameters) + ", gradients " +
         mebibytes(memory.gradients) + ", optimizer state " + mebibytes(memory.states) +
         ", gathered units and unreduced gradients " + mebibytes(memory.gathered) +
         ", activations " + mebibytes(memory.activations) +
         (memory.keys > 0 ? ", kept keys " + mebibytes(memory.keys) : "") + "; peak " +
         mebibytes(memory.total()) + " at " + memory.peak_at +
         (memory.graphs > 0 ? ", and at most " + mebibytes(memory.graphs) + " that graphs keep"
                            : "") +
         (memory.libraries > 0
              ? "; the CUDA context and NCCL take about " + mebibytes(memory.libraries) + " more"
              : "") +
         (memory.host > 0 ? "; in host memory (cpu_offload) " + mebibytes(memory.host) : "");
}

std::string describe(const Plan& plan) {
  int64_t trained = 0;
  for (const ParamSpec& param : plan.model.params)
    if (param.trainable) trained += num_elements(param.shape);
  std::string text =
      "plan: " + plan.model.family + ", " + std::to_string(plan.model.num_parameters()) +
      " parameters (" + std::to_string(trained) + " trained" +
      (plan.model.has_experts()
           ? ", " + std::to_string(plan.model.num_active_parameters()) + " active"
           : "") +
      "), " + std::to_string(plan.world_size()) + " ranks = dp_replicate " +
      std::to_string(plan.mesh.dp_replicate) + " x dp_shard " + std::to_string(plan.mesh.dp_shard) +
      ", precision " + plan.options.precision.preset + "\n";
  for (const std::string& note : plan.model.notes) text += "note: " + note + "\n";
  for (const std::string& note : plan.notes) text += "note: " + note + "\n";
  for (const std::string& note : unused_settings(plan)) text += "note: " + note + "\n";
  text += idle_warning(plan);
  text += rank_map(plan) + module_lines(plan) + unit_table(plan) + describe_pipeline(plan);
  text += kept_feature_lines(plan) + graph_line(plan);
  return text + memory_lines(plan) + describe_recomputation(plan) + describe_generation(plan);
}

}  // namespace zea
