// SPDX-License-Identifier: Apache-2.0
// The bytes of operations whose temporaries are more than their output.
#include "spec/operation_needs.hpp"

#include <algorithm>

#include "core/extent.hpp"
#include "core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kBlockBytes = int64_t{2} << 20;  ///< of oneDNN, for each thread

int64_t wide_bytes(DType param) {
  return std::max<int64_t>(4, static_cast<int64_t>(element_bytes(param)));
}

/// oneDNN packs operands and result for AMX, in whole blocks of 64.
int64_t blocked_product(int64_t m, int64_t k, int64_t n, const ElementBytes& bytes) {
  const auto whole = [](int64_t size) { return round_up(size, 64); };
  return (whole(m) + whole(n)) * whole(k) * bytes.param + whole(m) * whole(n) * bytes.wide;
}

/// Temporaries of adding (m, k) x (k, n) to sums: scratch, and a product if its type is another.
int64_t added_product_working(int64_t m, int64_t k, int64_t n, int64_t sum_bytes,
                              const ElementBytes& bytes) {
  const int64_t made_first = sum_bytes == bytes.param ? 0 : m * n * bytes.param;
  return made_first + gemm_scratch(m, k, n, bytes);
}

/// Temporaries of adding a^T b to a weight's gradient (out, in), for a (rows, out), b (rows, in).
int64_t outer_product_working(int64_t rows, int64_t out, int64_t in, const ElementBytes& bytes) {
  return added_product_working(out, rows, in, bytes.gradient, bytes);
}

}  // namespace

ElementBytes::ElementBytes(const UnitTypes& types)
    : param(static_cast<int64_t>(element_bytes(types.param))),
      wide(wide_bytes(types.param)),
      gradient(static_cast<int64_t>(element_bytes(types.gradient))),
      on_device(types.on_device),
      threads(types.threads) {}

int64_t gemm_scratch(int64_t m, int64_t k, int64_t n, const ElementBytes& bytes) {
  if (bytes.on_device || bytes.param > 4) return 0;
  const int64_t operands = (m + n) * k * bytes.param, result = m * n * bytes.wide;
  if (!bytes.is_narrow()) return std::min(bytes.threads * kBlockBytes, operands + result);
  const int64_t converted = converted_product_elements(m, k, n, true) * bytes.wide;
  return std::max(blocked_product(m, k, n, bytes), converted);
}

int64_t sums_bytes(int64_t rows, int64_t columns, const ElementBytes& bytes) {
  const int64_t step = rows_per_sum(columns);
  return (rows + step - 1) / step * columns * bytes.wide;
}

FunctionMemory linear_memory(int64_t rows, const WeightSpec& weight, bool bias_trains,
                             const ElementBytes& bytes) {
  FunctionMemory f;
  f.output = rows * weight.out * bytes.param;
  f.forward_peak = f.output + gemm_scratch(rows, weight.in, weight.out, bytes);
  f.gradient_working = gemm_scratch(rows, weight.out, weight.in, bytes);
  f.scratch = std::max(f.forward_peak - f.output, f.gradient_working);
  f.saves_input = weight.trains;
  if (weight.trains) f.backward_working = outer_product_working(rows, weight.out, weight.in, bytes);
  f.scratch = std::max(f.scratch, f.backward_working);
  if (bias_trains)
    f.backward_working = std::max(f.backward_working, sums_bytes(rows, weight.out, bytes));
  return f;
}

FunctionMemory column_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                    bool bias_trains, const ElementBytes& bytes) {
  FunctionMemory f = linear_memory(rows.all, weight, bias_trains, bytes);
  if (!rows.are_sharded()) return f;
  const int64_t gathered = rows.travelling * weight.in * bytes.param;
  f.forward_peak += gathered;
  // The input again, for the weight's gradient, and the unsummed one of it.
  f.backward_working += (weight.trains ? 2 : 1) * gathered;
  f.gradient_working += (weight.trains ? 2 : 1) * gathered;
  return f;
}

FunctionMemory row_linear_memory(const RowCounts& rows, const WeightSpec& weight, bool bias_trains,
                                 const ElementBytes& bytes, bool in_chunks) {
  FunctionMemory f = linear_memory(rows.all, weight, bias_trains, bytes);
  if (!rows.are_sharded()) return f;
  const int64_t all = rows.travelling * weight.out * bytes.param;
  f.forward_peak += all - f.output;
  f.output = rows.here * weight.out * bytes.param;
  f.forward_peak = std::max(f.forward_peak, f.output + all);
  f.backward_working += all;
  f.gradient_working += all;
  if (in_chunks && weight.trains) f.backward_working += rows.travelling * weight.in * bytes.param;
  return f;
}

FunctionMemory joint_norms_memory(int64_t rows, int64_t width, bool trains,
                                  const ElementBytes& bytes) {
  const int64_t output = 3 * rows * width * bytes.param, saved = 2 * rows * bytes.wide;
  const int64_t both = 2 * rows * width * bytes.wide, copy = bytes.is_narrow() ? both : 0;
  // Backward holds normalized rows and their gradient; their products are freed before dx is made.
  return {.output = output,
          .saved = saved,
          .saves_input = true,
          .forward_peak = output + saved + both + copy,
          .backward_working = trains ? 2 * both + copy : 0,
          .gradient_working = std::max(2 * both, 3 * both - output) + copy};
}

/// The library adds up narrow elements in a wide copy, into wide sums.
FunctionMemory mean_memory(int64_t x_bytes, int64_t count, const ElementBytes& bytes) {
  const int64_t wide = x_bytes / bytes.param * bytes.wide, output = x_bytes / count;
  return {.output = output, .forward_peak = bytes.is_narrow() ? output + wide + wide / count : 0};
}

FunctionMemory joined_memory(int64_t rows, int64_t width, int64_t before,
                             const ElementBytes& bytes) {
  const int64_t row = width * bytes.param;
  return {.output = rows * row, .forward_peak = 2 * rows * row, .gradient_working = before * row};
}

FunctionMemory standardized_memory(int64_t x_bytes, const ElementBytes& bytes) {
  const int64_t wide = bytes.is_narrow() ? x_bytes / bytes.param * bytes.wide : 0;
  return {.output = x_bytes, .forward_peak = x_bytes + wide, .gradient_working = wide};
}

/// Scores of all experts in the wide type are sorted with their indices.
FunctionMemory route_memory(int64_t rows, const RouterSpec& router, const ElementBytes& bytes) {
  constexpr auto kIndex = static_cast<int64_t>(sizeof(int64_t));
  const int64_t scores = rows * router.experts * bytes.wide;
  return {.output = rows * router.chosen * bytes.wide,
          .saved = rows * router.chosen * kIndex,
          .saves_input = true,
          .forward_peak = 4 * scores + rows * router.experts * kIndex,
          .backward_working = 4 * scores};
}

/// On a host each thread multiplies an expert, with the scratch of one that every token chooses. A
/// device makes the gradients of all experts at once, before it adds them.
FunctionMemory expert_linear_memory(int64_t rows, const WeightSpec& expert,
                                    const LocalExperts& experts, const ElementBytes& bytes) {
  FunctionMemory f = linear_memory(rows / experts.copies, expert, false, bytes);
  const int64_t output = rows * expert.out * bytes.param;
  const int64_t at_once = bytes.on_device ? 1 : std::min(bytes.threads, experts.count);
  f.forward_peak = output + at_once * (f.forward_peak - f.output);
  f.output = output;
  for (int64_t* scratch : {&f.gradient_working, &f.backward_working, &f.scratch})
    *scratch *= at_once;
  if (bytes.on_device && expert.trains)
    f.backward_working = experts.count * expert.out * expert.in * bytes.param;
  return f;
}

namespace {

/// A gated delta rule of `tokens` tokens in `chunks` chunks, of which forward keeps `states`
/// states.
struct ScanSizes {
  int64_t tokens = 0, chunks = 0, states = 0;
};

/// Elements per value head of a chunk on a device, as in kernels/delta_batches.cpp. In backward the
/// value heads of a key head share tiles.
struct ChunkElements {
  explicit ChunkElements(const DeltaRuleSpec& rule) {
    const int64_t keys = kDeltaChunk * rule.key_dim, values = kDeltaChunk * rule.value_dim;
    const int64_t pairs = kDeltaChunk * kDeltaChunk, state = rule.key_dim * rule.value_dim;
    const int64_t tiles = 2 * pairs + 3 * keys + values + 2 * state;
    forward = 5 * kDeltaChunk + 2 * pairs + (keys + values) + rule.key_dim * rule.key_dim + state +
              (state + values) + keys;
    backward = forward - keys + values + 2 * state + tiles * rule.key_heads / rule.value_heads;
    backward = std::max(backward, forward + values + 2 * state);
  }

  int64_t forward = 0, backward = 0;
};

FunctionMemory delta_rule_memory(const ScanSizes& sizes, const DeltaRuleSpec& rule,
                                 const ElementBytes& bytes) {
  const int64_t outputs = sizes.tokens * rule.values();
  const int64_t mixed = sizes.tokens * rule.columns() * bytes.wide;
  const int64_t convolution = rule.channels() * rule.taps * bytes.param;
  const auto parts = [&](int64_t items) {
    const int64_t step = rows_per_sum(rule.value_dim);
    return (items + step - 1) / step;
  };
  const ChunkElements of_item(rule);
  const int64_t items = bytes.on_device ? std::min(sizes.chunks, kDeltaBatchTokens / kDeltaChunk) *
                                              rule.value_heads * bytes.wide
                                        : 0;
  FunctionMemory f;
  f.output = outputs * bytes.param;
  f.saved = outputs * bytes.param +
            sizes.states * rule.value_heads * rule.key_dim * rule.value_dim * bytes.wide;
  f.saves_input = true;
  f.forward_peak = f.saved + std::max(mixed + convolution + items * of_item.forward, f.output);
  // Gradients of outputs before the norm, then with mixed rows and their gradients; then the latter
  // with sums for the convolution's weight.
  const int64_t of_norm = parts(sizes.tokens * rule.value_heads) * rule.value_dim * bytes.wide;
  const int64_t of_weight = parts(sizes.tokens) * rule.channels() * (rule.taps + 1) * bytes.wide;
  const int64_t of_scan = 2 * mixed + items * of_item.backward;
  f.backward_working = convolution + std::max(outputs * bytes.wide + std::max(of_norm, of_scan),
                                              2 * mixed + of_weight);
  return f;
}

/// Bytes of the inputs of the heads here, of the output of the tokens here, and of the inputs that
/// are sent, where cp ranks exchange tokens for heads.
struct ExchangedSizes {
  int64_t inputs, output, sent_inputs;
};

FunctionMemory exchanged_memory(const FunctionMemory& scan, const ExchangedSizes& sizes) {
  FunctionMemory f = scan;
  f.output = sizes.output;
  f.saved = scan.saved + sizes.inputs;
  f.saves_input = false;
  // Inputs as they travel, and in order; outputs in order, and as they travel.
  f.forward_peak = std::max({sizes.sent_inputs + 2 * sizes.inputs, sizes.inputs + scan.forward_peak,
                             f.saved + 2 * scan.output + 2 * sizes.output});
  // Gradients of outputs and inputs of the heads here exist beside what the scan takes.
  f.backward_working =
      std::max({2 * scan.output + sizes.output, scan.output + sizes.inputs + scan.backward_working,
                2 * sizes.inputs + sizes.sent_inputs});
  return f;
}

/// Rows of this rank in a scan whose states pass between cp ranks.
struct PassedRows {
  int64_t own, run;  ///< that it owns, and scans
  int64_t halo;      ///< that its convolution reads beyond these
  int64_t moved;     ///< the most that it sends, or receives
  int64_t entered;   ///< the most of its run that are of a sample which other ranks began
};

/// The run's scan has its inputs to itself, since they came from other ranks. The sample that other
/// ranks began is scanned with the identity beside its values (kernels/delta_run.hpp).
FunctionMemory passed_memory(const ScanSizes& sizes, const PassedRows& rows,
                             const DeltaRuleSpec& rule, const ElementBytes& bytes) {
  DeltaRuleSpec wide = rule;
  wide.value_dim += rule.key_dim;
  const FunctionMemory scan = delta_rule_memory(sizes, rule, bytes);
  const int64_t chunks = (rows.entered + kDeltaChunk - 1) / kDeltaChunk;
  const FunctionMemory whole = delta_rule_memory(
      {.tokens = rows.entered, .chunks = std::min(chunks, sizes.chunks), .states = sizes.states},
      wide, bytes);
  const int64_t inputs = (rows.run + rows.halo) * rule.columns() * bytes.param;
  const int64_t of_state = rule.value_heads * rule.key_dim * bytes.wide;
  const int64_t first = of_state * rule.value_dim, move = of_state * rule.key_dim;
  const int64_t seen = rows.entered * rule.value_heads * rule.key_dim;
  const auto moved = [&](int64_t from, int64_t to, int64_t width) {
    return (from + 2 * rows.moved + to) * width * bytes.param;
  };
  FunctionMemory f = scan;
  f.output = rows.own * rule.values() * bytes.param;
  f.saved = scan.saved + inputs + seen * bytes.param + first + move;
  f.saves_input = false;
  // The wide rows and outputs, which are made beside the mixed rows; then the outputs from them.
  const int64_t mixed = (rows.run + rows.halo) * rule.columns() * bytes.wide;
  const int64_t wide_outputs = rows.entered * wide.values() * bytes.wide;
  const int64_t entered = mixed + wide_outputs +
                          std::max(whole.forward_peak - whole.saved,
                                   seen * bytes.wide + rows.entered * rule.values() * bytes.wide) +
                          2 * of_state * wide.value_dim;
  const bool redistributes = rows.moved > rows.halo;
  f.forward_peak =
      std::max({moved(rows.own, rows.run + rows.halo, rule.columns()),
                f.saved + scan.forward_peak - scan.saved, f.saved + entered, f.saved + scan.output,
                f.saved + (redistributes ? moved(rows.run, rows.own, rule.values()) : 0)});
  const int64_t outputs = redistributes ? (rows.run + rows.moved) * rule.values() * bytes.param : 0;
  f.backward_working = std::max({redistributes ? moved(rows.run, 0, rule.values()) : 0,
                                 outputs + inputs + scan.backward_working + 3 * (first + move) +
                                     (bytes.is_narrow() ? seen * bytes.wide : 0),
                                 inputs + 2 * rows.moved * rule.columns() * bytes.param});
  return f;
}

/// Returns the maximum of each field.
FunctionMemory largest(FunctionMemory a, const FunctionMemory& b) {
  a.saved = std::max(a.saved, b.saved);
  a.forward_peak = std::max(a.forward_peak, b.forward_peak);
  a.backward_working = std::max(a.backward_working, b.backward_working);
  return a;
}

/// Returns the memory of a scan of all tokens on a cp rank, of its share of the heads or of all
/// heads (parallel/context_delta.cpp).
FunctionMemory scan_of_all_tokens(ScanSizes scan, const DeltaRuleSpec& of_rank, int64_t all_tokens,
                                  int64_t cp, int64_t rows, const ElementBytes& bytes) {
  const bool shares_heads = of_rank.key_heads % cp == 0;
  const DeltaRuleSpec here = of_rank.share(shares_heads ? cp : 1);
  scan.tokens = all_tokens;
  return exchanged_memory(
      delta_rule_memory(scan, here, bytes),
      {.inputs = all_tokens * here.columns() * bytes.param,
       .output = rows * of_rank.values() * bytes.param,
       .sent_inputs = (shares_heads ? 1 : cp) * rows * of_rank.columns() * bytes.param});
}

}  // namespace

FunctionMemory scan_memory(const DeltaRuleSpec& rule, const UnitSizes& sizes,
                           const UnitShare& share, int64_t rows, const ElementBytes& bytes) {
  ScanSizes scan;
  for (const AttentionSizes& batch : sizes.attention) {
    const auto parts_of = [&](int64_t tokens) { return (batch.length + tokens - 1) / tokens; };
    scan.states += batch.segments * (std::max<int64_t>(1, parts_of(kDeltaStateTokens)) - 1);
    scan.chunks += batch.segments * parts_of(kDeltaChunk);
  }
  const DeltaRuleSpec of_rank = rule.share(share.tp);
  if (share.cp == 1) {
    scan.tokens = rows;
    return delta_rule_memory(scan, of_rank, bytes);
  }
  const FunctionMemory of_all =
      scan_of_all_tokens(scan, of_rank, sizes.all_tokens, share.cp, rows, bytes);
  if (!share.passes_states) return of_all;
  int64_t longest = 0;
  for (const AttentionSizes& batch : sizes.attention) longest = std::max(longest, batch.length);
  const int64_t run = (sizes.all_tokens + share.cp - 1) / share.cp, halo = rule.taps - 1;
  scan.tokens = run;
  scan.states = (scan.states + share.cp - 1) / share.cp;
  scan.chunks = (scan.chunks + share.cp - 1) / share.cp + 2;
  const FunctionMemory passed = passed_memory(scan,
                                              {.own = rows,
                                               .run = run,
                                               .halo = halo,
                                               .moved = share.owns_runs ? halo : run,
                                               .entered = std::min(run, longest)},
                                              of_rank, bytes);
  return share.scans_prompts ? largest(passed, of_all) : passed;
}

FunctionMemory attention_memory(int64_t rows, const HeadShape& heads, const ElementBytes& bytes) {
  return {.output = rows * heads.query * heads.dim * bytes.param,
          .saved = rows * heads.query * bytes.wide,
          .saves_input = true,
          .saves_output = true};
}

FunctionMemory ragged_attention_memory(int64_t rows, int64_t segments, const HeadShape& heads,
                                       const ElementBytes& bytes) {
  FunctionMemory f = attention_memory(rows, heads, bytes);
  const int64_t queries = rows * heads.query * heads.dim;
  const int64_t parts = queries + 2 * rows * heads.key_value * heads.dim;
  // Gradients of each part, of keys and values for each query head; of queries as wide sums, for
  // which FlashAttention 2 pads each segment to 128 rows and each head to 32 elements.
  const int64_t expanded = heads.query == heads.key_value ? 0 : 2 * queries;
  const int64_t padded = rows + 128 * segments, dim = (heads.dim + 31) / 32 * 32;
  f.backward_working =
      (parts + expanded) * bytes.param + padded * heads.query * (dim + 1) * bytes.wide;
  return f;
}

namespace {

/// The library has results of its own, which are added to wide sums; narrow ones are copied then.
void add_library_context(FunctionMemory& f, const ContextSizes& context, const HeadShape& heads,
                         const ElementBytes& bytes) {
  const int64_t queries = context.group_tokens * heads.query * heads.dim;
  const int64_t keys =
      (context.key_tokens > 0 ? context.key_tokens : context.group_tokens) * 2 * heads.dim;
  // Queries that share a head of keys are put side by side, backward with what came of them; in
  // causal slices keys are repeated.
  const int64_t folded = heads.query == heads.key_value ? 0 : queries;
  f.forward_peak += (queries + folded) * bytes.param;
  f.backward_working +=
      (queries + std::max(keys * heads.query, keys * heads.key_value + 3 * folded)) * bytes.param;
  if (context.passes_keys || !bytes.is_narrow()) return;
  f.forward_peak += (queries + context.group_tokens * heads.query) * bytes.wide;
  f.backward_working += (queries + keys * heads.key_value) * bytes.wide;
}

}  // namespace

FunctionMemory context_attention_memory(const ContextSizes& context, const HeadShape& heads,
                                        const ElementBytes& bytes) {
  const bool exchanges = context.group_tokens != context.tokens;
  const int64_t inputs = heads.query + 2 * heads.key_value;
  const int64_t own = context.group_tokens * heads.dim;  // elements of a head
  const int64_t keys = context.key_tokens * 2 * heads.key_value * heads.dim;
  // Where keys are passed, what comes of them adds up in a wide type.
  const bool sums_wide = context.passes_keys && bytes.is_narrow();
  const int64_t of_sums = context.passes_keys ? bytes.wide : bytes.param;
  FunctionMemory f;
  const int64_t all_heads = heads.query * (exchanges ? context.group_tokens / context.tokens : 1);
  f.output = context.tokens * all_heads * heads.dim * bytes.param;
  f.saves_input = !exchanges;
  f.saves_output = !exchanges && !sums_wide;
  f.saved = context.group_tokens * heads.query * bytes.wide;
  if (exchanges) f.saved += own * inputs * bytes.param;
  if (!f.saves_output) f.saved += own * heads.query * bytes.param;
  // Keys as they travel: the own ones, those at hand and those that come; or all of them.
  const int64_t sent = own * 2 * heads.key_value * bytes.param;
  const int64_t travelling =
      context.passes_keys ? sent + 2 * keys * bytes.param : keys * bytes.param;
  f.forward_peak = f.saved + own * heads.query * of_sums + travelling;
  // The gradients of all inputs; with those of the keys at hand and on their way, and then as they
  // go back.
  const int64_t narrowed = sums_wide ? own * inputs * bytes.param : 0;
  const int64_t returned = narrowed + (exchanges ? own * inputs * bytes.param : 0);
  const int64_t of_keys = keys * (of_sums + bytes.param) + travelling;
  f.backward_working = own * inputs * of_sums + (exchanges ? own * heads.query * bytes.param : 0) +
                       std::max(of_keys, returned);
  if (bytes.on_device) add_library_context(f, context, heads, bytes);
  return f;
}

FunctionMemory window_attention_memory(int64_t rows, int64_t window, const HeadShape& heads,
                                       const ElementBytes& bytes) {
  FunctionMemory f = context_attention_memory({rows, rows, 0, false}, heads, bytes);
  // For a slice in reverse order queries, keys and values are copied; backward, what came of them
  // and the gradients, too.
  const int64_t slice = window * heads.dim, inputs = heads.query + 2 * heads.key_value;
  f.forward_peak += slice * inputs * bytes.param;
  f.backward_working +=
      slice * (inputs + 2 * heads.query) * bytes.param + slice * inputs * bytes.wide;
  return f;
}

FunctionMemory attention_here_memory(const ModelSpec& model, const UnitSpec& unit,
                                     const std::vector<AttentionSizes>& batches, int64_t rows,
                                     const HeadShape& heads, const ElementBytes& bytes) {
  if (!bytes.on_device) return attention_memory(rows, heads, bytes);
  const AttentionSpec& spec = model.attention(unit);
  int64_t longest = 0, segments = 0;
  for (const AttentionSizes& batch : batches) {
    longest = std::max(longest, batch.length);
    segments += batch.segments;
  }
  const int64_t window = unit.encoder < 0 && spec.window < longest ? spec.window : 0;
  const bool takes_segments =
      bytes.is_narrow() && takes_ragged_heads(heads.dim) && spec.scores.softcap == 0;
  if (takes_segments &&
      (window == 0 || model.decoder.bidirectional_images == BidirectionalLayers::None))
    return ragged_attention_memory(rows, segments, heads, bytes);
  return window > 0 ? window_attention_memory(rows, window, heads, bytes)
                    : context_attention_memory({rows, rows, 0, false}, heads, bytes);
}

FunctionMemory cross_entropy_memory(int64_t rows, const WeightSpec& vocabulary, bool keeps,
                                    bool caps, const ElementBytes& bytes) {
  const LogitBounds& bounds = logit_bounds(bytes.on_device);
  const LogitTile tile(rows, vocabulary.out, bounds);
  const bool are_kept = keeps && keeps_logits(rows, vocabulary.out, bounds);
  const int64_t kept = are_kept ? rows * vocabulary.out * bytes.param : 0;
  const int64_t tile_rows = std::min(rows, tile.rows);
  const int64_t logits = are_kept ? 0 : tile_rows * tile.columns * bytes.param;
  const int64_t states = tile_rows * vocabulary.in;
  FunctionMemory f;
  f.output = static_cast<int64_t>(element_bytes(DType::Float64));
  f.saved = rows * bytes.wide;
  f.scratch = std::max(gemm_scratch(tile_rows, vocabulary.in, tile.columns, bytes),
                       gemm_scratch(tile_rows, tile.columns, vocabulary.in, bytes));
  if (vocabulary.trains)
    f.scratch =
        std::max(f.scratch, outer_product_working(tile_rows, tile.columns, vocabulary.in, bytes));
  f.saves_input = true;
  const auto making_of = [&](int64_t of_rows) {
    return gemm_scratch(of_rows, vocabulary.in, tile.columns, bytes);
  };
  const int64_t making = making_of(tile_rows);
  // All saved tensors exist when the last rows are made, which are fewer.
  const int64_t last_rows = (rows - 1) % tile.rows + 1;
  const int64_t not_yet =
      are_kept && rows > tile.rows ? last_rows * vocabulary.out * bytes.param : 0;
  const int64_t most = std::max(making - not_yet, making_of(last_rows));
  f.forward_peak = f.output + 3 * f.saved + std::max(logits + most, f.saved) + kept;
  f.saved += kept;
  // Many tiles are summed, in the wide type; one is made and added.
  const bool are_summed = tile.columns < vocabulary.out;
  const int64_t standing = logits + (are_summed && bytes.is_narrow() ? states * bytes.wide : 0);
  const auto of_dx = [&](int64_t sum_bytes) {
    return added_product_working(tile_rows, tile.columns, vocabulary.in, sum_bytes, bytes);
  };
  const int64_t dx = are_summed ? of_dx(bytes.wide) : states * bytes.param + of_dx(bytes.param);
  const int64_t slopes = caps ? tile_rows * tile.columns * bytes.param : 0;
  const int64_t made = std::max(slopes, are_kept ? 0 : making);
  f.gradient_working = standing + std::max(dx, made);
  f.backward_working = standing + made;
  if (vocabulary.trains)
    f.backward_working = standing + std::max(made, outer_product_working(tile_rows, tile.columns,
                                                                         vocabulary.in, bytes));
  return f;
}

UnitSizes UnitSizes::whole(int64_t tokens, int64_t projected, int64_t features, int64_t patches) {
  const RowCounts all = RowCounts::whole(tokens);
  return {.tokens = all,
          .projected = RowCounts::whole(projected),
          .features = RowCounts::whole(features),
          .targets = all,
          .patches = patches,
          .all_tokens = tokens};
}

}  // namespace zea::detail
