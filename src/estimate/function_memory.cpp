// SPDX-License-Identifier: Apache-2.0
#include "estimate/function_memory.hpp"

#include <algorithm>

#include "core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

/// Of a pair of bf16, and of a sum of their products.
constexpr int64_t kPairBytes = 4;

/// A dim in whole blocks of oneDNN, of which operands and sums are at least one.
int64_t in_blocks(int64_t elements) {
  constexpr int64_t kBlock = 64;
  return (elements + kBlock - 1) / kBlock * kBlock;
}

int64_t wide_bytes(DType param) {
  return std::max<int64_t>(4, static_cast<int64_t>(element_bytes(param)));
}

/// Of sums over rows, one for each chunk of them.
int64_t sums_bytes(int64_t rows, int64_t columns, const ElementBytes& bytes) {
  const int64_t step = rows_per_sum(columns);
  return (rows + step - 1) / step * columns * bytes.wide;
}

}  // namespace

ElementBytes::ElementBytes(const UnitTypes& types)
    : param(static_cast<int64_t>(element_bytes(types.param))),
      wide(wide_bytes(types.param)),
      gradient(static_cast<int64_t>(element_bytes(types.gradient))),
      on_device(types.on_device),
      multiplies_bf16(types.param == DType::BFloat16 && !on_device),
      products(types.products),
      library_blocks(types.library_block_bytes) {}

int64_t MatrixProduct::unpaired_working(const ElementBytes& bytes) const {
  if (bytes.converts()) return kPairBytes * converted_product_elements(rows, inner, columns, true);
  if (!bytes.multiplies_by_blocks() || bytes.library_blocks == 0) return 0;
  if (bytes.multiplies_bf16 && bytes.products == NarrowProducts::LibrarySums)
    return rows * columns * kPairBytes;
  const int64_t m = in_blocks(rows), n = in_blocks(columns), k = in_blocks(inner);
  return std::min(bytes.library_blocks, (m + n) * k * bytes.param + m * n * kPairBytes);
}

int64_t MatrixProduct::working(const ElementBytes& bytes) const {
  return is_of_pairs(bytes) ? kPairBytes * pair_product_elements(rows, inner, columns, false)
                            : unpaired_working(bytes);
}

int64_t MatrixProduct::adding(const ElementBytes& bytes, int64_t sum_bytes) const {
  const bool are_pairs = is_of_pairs(bytes) && sum_bytes != bytes.param;
  return are_pairs ? working(bytes) : adding_unpaired(bytes, sum_bytes);
}

int64_t MatrixProduct::adding_unpaired(const ElementBytes& bytes, int64_t sum_bytes) const {
  if (bytes.converts() && sum_bytes == kPairBytes)
    return kPairBytes * converted_product_elements(rows, inner, columns, false);
  const int64_t made_first = sum_bytes == bytes.param ? 0 : rows * columns * bytes.param;
  return made_first + unpaired_working(bytes);
}

int64_t outer_product_working(int64_t rows, int64_t out, int64_t in, const ElementBytes& bytes) {
  if (bytes.gradient != bytes.param && bytes.multiplies_pairs() && bytes.gradient == kPairBytes)
    return kPairBytes * pair_product_elements(out, rows, in, true);
  return MatrixProduct{out, rows, in}.adding_unpaired(bytes, bytes.gradient);
}

FunctionMemory linear_memory(int64_t rows, const WeightSpec& weight, const ElementBytes& bytes) {
  FunctionMemory f;
  f.output = rows * weight.out * bytes.param;
  f.forward_peak = f.output + MatrixProduct{rows, weight.in, weight.out}.working(bytes);
  f.gradient_working = MatrixProduct{rows, weight.out, weight.in}.working(bytes);
  f.trains = f.saves_input = weight.trains;
  if (!weight.trains) return f;
  f.backward_working = outer_product_working(rows, weight.out, weight.in, bytes);
  if (weight.has_bias)
    f.backward_working = std::max(f.backward_working, sums_bytes(rows, weight.out, bytes));
  return f;
}

FunctionMemory column_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                    const ElementBytes& bytes) {
  FunctionMemory f = linear_memory(rows.all, weight, bytes);
  if (!rows.are_dealt()) return f;
  const int64_t gathered = rows.travelling * weight.in * bytes.param;
  f.forward_peak += gathered;
  // The input again, for the weight's gradient, and the unsummed one of it.
  f.backward_working += (weight.trains ? 2 : 1) * gathered;
  f.gradient_working += (weight.trains ? 2 : 1) * gathered;
  return f;
}

FunctionMemory row_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                 const ElementBytes& bytes) {
  FunctionMemory f = linear_memory(rows.all, weight, bytes);
  if (!rows.are_dealt()) return f;
  const int64_t all = rows.travelling * weight.out * bytes.param;
  f.forward_peak += all - f.output;
  f.output = rows.here * weight.out * bytes.param;
  f.forward_peak = std::max(f.forward_peak, f.output + all);
  f.backward_working += all;
  f.gradient_working += all;
  return f;
}

FunctionMemory norm_memory(int64_t rows, int64_t hidden, int64_t numbers, bool trains,
                           const ElementBytes& bytes) {
  return {.output = rows * hidden * bytes.param,
          .saved = numbers * rows * bytes.wide,
          .saves_input = true,
          .trains = trains,
          .backward_working = trains ? numbers * sums_bytes(rows, hidden, bytes) : 0};
}

FunctionMemory head_norms_memory(int64_t rows, int64_t width, int64_t dim, bool trains,
                                 const ElementBytes& bytes) {
  const int64_t step = rows_per_sum(width), parts = (rows + step - 1) / step;
  return {.output = rows * width * bytes.param,
          .saved = rows * (width / dim) * bytes.wide,
          .saves_input = true,
          .trains = trains,
          .backward_working = trains ? 2 * (parts + 1) * dim * bytes.wide : 0};
}

FunctionMemory joint_norms_memory(int64_t rows, int64_t width, bool trains,
                                  const ElementBytes& bytes) {
  const int64_t output = 3 * rows * width * bytes.param, saved = 2 * rows * bytes.wide;
  const int64_t both = 2 * rows * width * bytes.wide, copy = bytes.is_narrow() ? both : 0;
  // Backward what is normalised and the gradient of that; their products, whose sums travel, are
  // gone before the gradient of the input is made.
  return {.output = output,
          .saved = saved,
          .saves_input = true,
          .trains = trains,
          .forward_peak = output + saved + both + copy,
          .backward_working = trains ? 2 * both + copy : 0,
          .gradient_working = std::max(2 * both, 3 * both - output) + copy};
}

FunctionMemory layer_scale_memory(int64_t rows, int64_t hidden, bool trains,
                                  const ElementBytes& bytes) {
  const int64_t output = rows * hidden * bytes.param;
  return {.output = output,
          .saves_input = trains,
          .trains = trains,
          .backward_working = trains ? output + sums_bytes(rows, hidden, bytes) : 0};
}

FunctionMemory embedding_memory(int64_t rows, const WeightSpec& weight, const ElementBytes& bytes) {
  const int64_t elements = rows * weight.in;
  return {.output = elements * bytes.param,
          .trains = weight.trains,
          .backward_working = bytes.gradient != bytes.param ? elements * bytes.gradient : 0};
}

FunctionMemory interpolated_rows_memory(int64_t rows, const WeightSpec& weight,
                                        const ElementBytes& bytes) {
  FunctionMemory f = embedding_memory(rows, weight, bytes);
  f.forward_peak = 2 * f.output;
  f.backward_working += f.output;
  return f;
}

FunctionMemory image_tokens_memory(int64_t rows, int64_t table, int64_t hidden, bool trains,
                                   const ElementBytes& bytes) {
  const int64_t widened = bytes.gradient != bytes.param ? rows : 0;
  return {.output = rows * hidden * bytes.param,
          .trains = trains,
          .backward_working = (table + widened) * hidden * bytes.gradient};
}

FunctionMemory windows_memory(int64_t rows, int64_t hidden, const ElementBytes& bytes) {
  const int64_t output = 3 * rows * hidden * bytes.param;
  // Places without those beyond the clip, and which these are, beside one column of the windows.
  const int64_t column = rows * (hidden * bytes.param + static_cast<int64_t>(sizeof(int64_t)) + 1);
  return {.output = output, .forward_peak = output + column, .backward_working = column};
}

int64_t biases_working(int64_t rows, const WeightSpec& bias, const ElementBytes& bytes) {
  return bias.trains ? sums_bytes(rows, bias.out, bytes) : 0;
}

FunctionMemory rotary_memory(int64_t rows, int64_t width, const ElementBytes& bytes) {
  return {.output = rows * width * bytes.param, .changes_input = true};
}

FunctionMemory gated_memory(int64_t rows, int64_t width, const ElementBytes& bytes) {
  return {.output = rows * width * bytes.param, .saves_input = true};
}

FunctionMemory activation_memory(int64_t rows, int64_t width, Activation activation,
                                 const ElementBytes& bytes) {
  const bool keeps_output = activation == Activation::Relu;
  return {.output = rows * width * bytes.param,
          .saves_input = !keeps_output,
          .saves_output = keeps_output};
}

FunctionMemory attention_memory(int64_t rows, const HeadSizes& heads, const ElementBytes& bytes) {
  return {.output = rows * heads.query * heads.dim * bytes.param,
          .saved = rows * heads.query * bytes.wide,
          .saves_input = true,
          .saves_output = true};
}

FunctionMemory ragged_attention_memory(int64_t rows, int64_t segments, const HeadSizes& heads,
                                       const ElementBytes& bytes) {
  FunctionMemory f = attention_memory(rows, heads, bytes);
  const int64_t queries = rows * heads.query * heads.dim;
  const int64_t parts = queries + 2 * rows * heads.key_value * heads.dim;
  // Gradients of each part, of keys and values for each query head; of queries as wide sums, for
  // which flash attention pads each segment and each head (mha_varlen_bwd of FlashAttention 2).
  const int64_t expanded = heads.query == heads.key_value ? 0 : 2 * queries;
  const int64_t padded = rows + 128 * segments;
  const int64_t dim = heads.dim > 192 ? 256 : (heads.dim + 31) / 32 * 32;
  f.backward_working =
      (parts + expanded) * bytes.param + padded * heads.query * (dim + 1) * bytes.wide;
  return f;
}

namespace {

/// The library has results of its own, which are added to wide sums; narrow ones are copied then.
void add_library_context(FunctionMemory& f, const ContextSizes& context, const HeadSizes& heads,
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

FunctionMemory context_attention_memory(const ContextSizes& context, const HeadSizes& heads,
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

FunctionMemory window_attention_memory(int64_t rows, int64_t window, const HeadSizes& heads,
                                       const ElementBytes& bytes) {
  FunctionMemory f = context_attention_memory({rows, rows, 0, false}, heads, bytes);
  // Of a slice in reverse order queries, keys and values are copied; backward, what came of them
  // and the gradients, too.
  const int64_t slice = window * heads.dim, inputs = heads.query + 2 * heads.key_value;
  f.forward_peak += slice * inputs * bytes.param;
  f.backward_working +=
      slice * (inputs + 2 * heads.query) * bytes.param + slice * inputs * bytes.wide;
  return f;
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
  f.saves_input = true;
  f.trains = vocabulary.trains;
  const auto making_of = [&](int64_t of_rows) {
    return MatrixProduct{of_rows, vocabulary.in, tile.columns}.working(bytes);
  };
  const int64_t making = making_of(tile_rows);
  // Those that are kept are all there when the last rows are made, which are fewer.
  const int64_t last_rows = (rows - 1) % tile.rows + 1;
  const int64_t not_yet =
      are_kept && rows > tile.rows ? last_rows * vocabulary.out * bytes.param : 0;
  const int64_t most = std::max(making - not_yet, making_of(last_rows));
  f.forward_peak = f.output + 3 * f.saved + std::max(logits + most, f.saved) + kept;
  f.saved += kept;
  // Many tiles are summed, in the wide type; one is made and added.
  const MatrixProduct of_logits{tile_rows, tile.columns, vocabulary.in};
  const bool are_summed = tile.columns < vocabulary.out;
  const int64_t standing = logits + (are_summed && bytes.is_narrow() ? states * bytes.wide : 0);
  const int64_t dx = are_summed ? of_logits.adding(bytes, bytes.wide)
                                : states * bytes.param + of_logits.working(bytes);
  const int64_t slopes = caps ? tile_rows * tile.columns * bytes.param : 0;
  const int64_t made = std::max(slopes, are_kept ? 0 : making);
  f.gradient_working = standing + std::max(dx, made);
  f.backward_working = standing + made;
  if (vocabulary.trains)
    f.backward_working = standing + std::max(made, outer_product_working(tile_rows, tile.columns,
                                                                         vocabulary.in, bytes));
  return f;
}

FunctionMemory sum_memory(int64_t bytes) {
  return {.output = bytes, .passes_gradient = true};
}

FunctionMemory mixed_rows_memory(int64_t bytes) {
  return {.output = bytes, .forward_peak = 2 * bytes, .gradient_working = bytes};
}

FunctionMemory rows_memory(int64_t bytes) {
  return {.output = bytes};
}

}  // namespace zea::detail
