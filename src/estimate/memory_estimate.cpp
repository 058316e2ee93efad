// SPDX-License-Identifier: Apache-2.0
#include "estimate/memory_estimate.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "layout/flat_layout.hpp"
#include "layout/muon_matrices.hpp"
#include "schedule/communicators.hpp"
#include "schedule/replicated_ranges.hpp"

namespace zea {
namespace {

int64_t bytes_of(DType dtype) {
  return static_cast<int64_t>(element_bytes(dtype));
}

/// The bytes that libtorch's allocator takes for a tensor in host memory.
int64_t host_bytes(int64_t bytes, bool is_pinned) {
  return is_pinned ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))) : bytes;
}

/// Each tensor of an offloaded buffer's shard.
int64_t offloaded_bytes(const Plan& plan, int g, int64_t own, const OwnedBytes& each,
                        FlatRange range) {
  const FlatBuffer& buffer = plan.buffers[g];
  const DType master = plan.precision.master;
  const int64_t value = bytes_of(plan.owned_type(g));
  std::vector<int64_t> tensors{own * value, own * (each.parameters - value), own * each.gradients};
  for (const StateSpec& state : plan.optimizer.states)
    if (buffer.trainable)
      tensors.push_back(state_elements(state, buffer, plan.param_rules, range) *
                        bytes_of(state.type(master)));
  int64_t sum = 0;
  for (const int64_t bytes : tensors)
    if (bytes > 0) sum += host_bytes(bytes, plan.shardings[g].pins_memory);
  return sum;
}

void add_owned(MemoryEstimate& estimate, const Plan& plan, int g, int world_rank) {
  const FlatBuffer& buffer = plan.buffers[g];
  const Sharding& sharding = plan.shardings[g];
  const Precision& precision = plan.precision_of(buffer.module);
  const int64_t padded = buffer.padded(sharding.shards), own = padded / sharding.shards;
  const OwnedBytes each = owned_bytes(precision, buffer.trainable, buffer.is_computed_with());
  const FlatRange range = shard_range(buffer, plan.shard_of(world_rank, g), sharding.shards);
  if (sharding.offloads) {
    estimate.host += offloaded_bytes(plan, g, own, each, range);
  } else {
    estimate.parameters += own * each.parameters;
    if (buffer.trainable)
      estimate.states +=
          state_bytes(plan.optimizer, buffer, plan.param_rules, range, precision.master);
    estimate.gradients += own * each.gradients;
  }
  if (sharding.subgroup > 0 && buffer.is_computed_with())
    estimate.gathered += padded / sharding.subgroup * bytes_of(precision.param);
  // An offloaded gradient passes through the device.
  if (buffer.trainable && sharding.replicas > 1 &&
      (sharding.offloads || precision.reduce != precision.master))
    estimate.gathered += own * bytes_of(precision.reduce);
}

/// The bytes that Muon takes beside the buffers that it updates together, with the messages of the
/// buffers before that are still on their way: on this rank, or `at_most` on one of the ranks that
/// share its work, which update other matrices.
int64_t muon_bytes(const Plan& plan, int world_rank, bool at_most) {
  const RunOptions& run = plan.options.run;
  const int64_t threads = run.device == DeviceKind::Cpu ? run.threads : 1;
  int64_t most = 0, before = 0;
  for (const MuonPart& part : muon_parts(plan.model, plan.buffers, plan.shardings, plan.cuts,
                                         plan.param_rules, plan.held_buffers(world_rank))) {
    const int buffer = part.buffers.front();
    const Sharding& sharding = plan.shardings[buffer];
    std::vector<MuonElements> ranks =
        muon_elements(part, plan.buffers, sharding, plan.tp_pieces(buffer), threads);
    const int own =
        plan.copy_of(world_rank, buffer) * sharding.shards + plan.shard_of(world_rank, buffer);
    if (!at_most) ranks = {ranks[static_cast<size_t>(own)]};
    int64_t moved = 0, all = 0;
    for (const MuonElements& elements : ranks) {
      moved = std::max(moved, elements.moved);
      all = std::max(all, elements.moved + elements.made);
    }
    most = std::max(most, before + all);
    before = moved;
  }
  return most * bytes_of(plan.precision.master);
}

/// The items of a microbatch that a rank encodes, at most: encoder_dp groups share them.
ItemList own_items(const Plan& plan, const ItemList& all, int world_rank) {
  ItemList own;
  for (const EncoderSpec& encoder : plan.model.encoders) {
    if (!plan.mesh.has(world_rank, encoder.name)) continue;
    own += largest_share(plan.model, all, plan.model.encoder_index(encoder.name),
                         plan.mesh.grid(encoder.name).encoder_dp);
  }
  return own;
}

/// Returns the bytes of GPU memory for the CUDA context and NCCL. The constants are assumed until
/// tests/gpu/lease.sh has measured them: a context with libtorch's kernels, and ring buffers of
/// each communicator. A channel has 4 MiB for NCCL's Simple protocol and about 5 MiB for LL and
/// LL128.
int64_t library_bytes(const Plan& plan, int world_rank) {
  constexpr int64_t kMebibyte = 1 << 20, kContext = 600 * kMebibyte, kChannel = 9 * kMebibyte;
  constexpr int64_t kChannels = 16, kFewChannels = 8;
  if (plan.options.run.device == DeviceKind::Cpu) return 0;
  const int64_t usual = std::ssize(communicators_of_groups(plan, world_rank)),
                small = count_small_communicators(plan, world_rank);
  return kContext + (usual * kChannels + small * kFewChannels) * kChannel;
}

/// Adds `bytes` at `what`, which a step needs after its last backward, in addition to the inputs of
/// microbatches.
void add_behind(MemoryEstimate& estimate, int64_t inputs, int64_t bytes, const char* what) {
  if (inputs + bytes <= estimate.activations) return;
  estimate.activations = inputs + bytes;
  estimate.peak_at = what;
  estimate.scratch = 0;
}

/// `updating`: what the optimizer's step takes beside the inputs of microbatches; 0: there is none.
MemoryEstimate estimate(const Plan& plan, int world_rank,
                        const std::vector<MicrobatchSizes>& microbatches, bool forward_only,
                        int64_t updating, UnitMemoryCache* known = nullptr) {
  MemoryEstimate estimate;
  for (const int g : plan.held_buffers(world_rank)) add_owned(estimate, plan, g, world_rank);
  const int group = plan.group_of(world_rank);
  const SlotPlans& slots = plan.slots[group];
  estimate.gathered +=
      slots.gathered.total_bytes() + slots.gradients.total_bytes() + slots.wire.total_bytes();
  std::map<std::string, UnitTypes> types;
  for (const std::string& module : plan.model.modules())
    if (plan.mesh.has(world_rank, module)) types[module] = detail::unit_types(plan, module);
  int64_t inputs = 0;
  for (const MicrobatchSizes& sizes : microbatches)
    inputs += microbatch_bytes(
        plan.model, with_items(plan.model, sizes, own_items(plan, sizes.items, world_rank)), types);
  // A replayed step holds the microbatches of two ranks.
  const bool replays = !forward_only && plan.options.run.replay_every > 0;
  if (replays && replay_distance(plan.dealing) > 0) inputs *= 2;
  detail::StepPeak peak =
      detail::peak_of_step(plan, group, microbatches, inputs, forward_only, known);
  estimate.activations = peak.bytes;
  estimate.inputs = inputs;
  estimate.scratch = peak.scratch;
  estimate.peak_at = std::move(peak.at);
  const int64_t packed = forward_only ? 0 : packed_replicated_bytes(plan, world_rank);
  add_behind(estimate, inputs, packed, "sums over holders");
  if (const int64_t shapes = forward_only ? 0 : plan.options.run.cuda_graphs; shapes > 0)
    estimate.graphs = shapes * inputs + estimate.activations - inputs;
  add_behind(estimate, inputs, updating, "optimizer");
  estimate.libraries = library_bytes(plan, world_rank);
  return estimate;
}

/// The microbatches of a replica's step with one sample in each row.
int64_t microbatches_of(const Options& options, int64_t samples) {
  const int64_t rows = options.data.rows_per_microbatch;
  return (samples + rows - 1) / rows;
}

int64_t even_microbatches(const Options& options, int64_t replicas) {
  return microbatches_of(options, (options.schedule.global_batch + replicas - 1) / replicas);
}

/// Returns whether a unit is a block of the decoder, run in decoding, at the stage group of
/// `world_rank`.
bool has_block(const Plan& plan, size_t unit, int world_rank) {
  const UnitSpec& spec = plan.model.units[unit];
  return spec.module == kDecoder && spec.kind == UnitKind::Block && !spec.is_mtp &&
         plan.pipeline.group_of_unit(static_cast<int>(unit)) == plan.group_of(world_rank);
}

}  // namespace

int64_t kept_samples(const Plan& plan) {
  const int64_t replicas = plan.mesh.replicas(), most = plan.options.eval.samples;
  const int64_t batch = plan.options.schedule.global_batch;
  return ((most > 0 ? std::min(batch, most) : batch) + replicas - 1) / replicas;
}

int64_t kept_tokens(const Plan& plan) {
  return plan.options.data.row_tokens / plan.mesh.grid(kDecoder).cp +
         plan.options.eval.generate_tokens;
}

int64_t kv_bytes_per_token(const Plan& plan, int world_rank) {
  if (!plan.mesh.has(world_rank, kDecoder)) return 0;
  int64_t elements = 0;
  std::set<std::string> kept;  // blocks that share keys share a KV cache entry
  for (size_t u = 0; u < plan.model.units.size(); ++u) {
    const UnitSpec& unit = plan.model.units[u];
    if (!has_block(plan, u, world_rank) || plan.model.delta_rule(unit)) continue;
    if (!kept.insert(plan.model.keys_of(unit).name).second) continue;
    const AttentionSpec& attention = plan.model.attention(unit);
    const HeadShape& heads = attention.heads;
    const int64_t here = std::max<int64_t>(1, heads.key_value / plan.mesh.grid(kDecoder).tp);
    elements += plan.model.caches_latents(unit) ? attention.latent->rotary + attention.latent->rank
                                                : 2 * here * heads.dim;
  }
  return elements * static_cast<int64_t>(element_bytes(plan.precision.param));
}

int64_t state_bytes_per_sample(const Plan& plan, int world_rank) {
  if (!plan.mesh.has(world_rank, kDecoder)) return 0;
  const ModuleGrid& grid = plan.mesh.grid(kDecoder);
  const detail::ElementBytes bytes({.param = plan.precision.param});
  int64_t sum = 0;
  for (size_t u = 0; u < plan.model.units.size(); ++u) {
    const DeltaRuleSpec* rule = plan.model.delta_rule(plan.model.units[u]);
    if (!rule || !has_block(plan, u, world_rank)) continue;
    // Heads that cp does not divide are on all of its ranks.
    const bool is_shared = rule->key_heads % (int64_t{grid.tp} * grid.cp) == 0;
    const DeltaRuleSpec here = rule->share(is_shared ? int64_t{grid.tp} * grid.cp : grid.tp);
    sum += (here.taps - 1) * here.columns() * bytes.param +
           here.value_heads * here.key_dim * here.value_dim * bytes.wide;
  }
  return sum;
}

int64_t kv_cache_bytes(const Plan& plan, int world_rank) {
  return kept_samples(plan) * (kv_bytes_per_token(plan, world_rank) * kept_tokens(plan) +
                               state_bytes_per_sample(plan, world_rank));
}

SampleIndex full_row(const Plan& plan) {
  SampleIndex row{.tokens = plan.options.data.row_tokens, .targets = plan.options.data.row_tokens};
  // Full of items: of every encoder in equal parts.
  const auto encoders = static_cast<int64_t>(plan.model.encoders.size());
  for (const EncoderSpec& encoder : plan.model.encoders) {
    const int64_t most = row.tokens / encoders;
    const ItemShape fitting = encoder.shape_within(most);
    const int64_t features = fitting.features;
    const ItemShape shape = fitting == encoder.item_shape() ? ItemShape{} : fitting;  // the usual
    const int64_t items = std::max(most / features, std::min<int64_t>(1, row.tokens / features));
    row.items.add(plan.model.encoder_index(encoder.name), items, shape);
  }
  return row;
}

MicrobatchSizes full_microbatch(const Plan& plan) {
  return microbatch_sizes(
      plan.model, std::vector<SampleIndex>(plan.options.data.rows_per_microbatch, full_row(plan)));
}

MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchSizes>& microbatches) {
  return estimate(plan, world_rank, microbatches, plan.options.run.mode != RunMode::Train,
                  muon_bytes(plan, world_rank, false));
}

MemoryEstimate estimate_memory(const Plan& plan, int world_rank,
                               const std::vector<MicrobatchPlan>& step, const SampleTable& index) {
  std::vector<MicrobatchSizes> microbatches;
  for (const MicrobatchPlan& part : step) {
    std::vector<SampleIndex> samples;
    for (int64_t id : part.samples) samples.push_back(index[id]);
    microbatches.push_back(microbatch_sizes(plan.model, samples));
    microbatches.back().expert_tokens =
        std::accumulate(part.expert_tokens.begin(), part.expert_tokens.end(), int64_t{0});
  }
  return estimate_memory(plan, world_rank, microbatches);
}

MemoryEstimate estimate_run(const Plan& plan, int world_rank,
                            const std::vector<MicrobatchSizes>& microbatches,
                            UnitMemoryCache* known) {
  const bool trains = plan.options.run.mode == RunMode::Train;
  MemoryEstimate step =
      estimate(plan, world_rank, microbatches, !trains, muon_bytes(plan, world_rank, true), known);
  if (!plan.generates()) return step;
  MemoryEstimate said = trains ? estimate(plan, world_rank, microbatches, true, 0) : step;
  said.keys = kv_cache_bytes(plan, world_rank);
  said.graphs = step.graphs;  // an evaluation leaves them where they are
  if (trains) said.peak_at += " of an evaluation";
  return said.total() > step.total() ? said : step;
}

int64_t even_microbatches(const Plan& plan) {
  return even_microbatches(plan.options, plan.mesh.replicas());
}

int64_t most_microbatches(const Plan& plan) {
  const int64_t others = plan.mesh.replicas() - 1, batch = plan.options.schedule.global_batch;
  return plan.options.data.balance
             ? microbatches_of(plan.options, std::max<int64_t>(1, batch - others))
             : even_microbatches(plan);
}

int64_t predicted_microbatches(const Options& options, int64_t replicas, int64_t groups) {
  return std::min(even_microbatches(options, replicas), std::max<int64_t>(groups, 2));
}

int64_t predicted_microbatches(const Plan& plan) {
  return predicted_microbatches(plan.options, plan.mesh.replicas(),
                                std::ssize(plan.pipeline.stage_groups));
}

std::vector<MemoryEstimate> estimate_groups(const Plan& plan, int64_t microbatches) {
  const std::vector<MicrobatchSizes> full(static_cast<size_t>(microbatches), full_microbatch(plan));
  std::vector<MemoryEstimate> estimates;
  for (const StageGroup& group : plan.pipeline.stage_groups)
    estimates.push_back(estimate_run(plan, group.first_rank, full));
  return estimates;
}

}  // namespace zea
