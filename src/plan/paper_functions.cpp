// SPDX-License-Identifier: Apache-2.0
#include "paper_functions.hpp"

#include <algorithm>

#include "zea/core/kernel_sizes.hpp"

namespace zea::detail {
namespace {

int64_t wide_bytes(DType param) {
  return std::max<int64_t>(4, static_cast<int64_t>(element_bytes(param)));
}

/// Of the library's flash kernels on the host: a block of queries, and one of scores, per thread.
struct FlashBlock {
  explicit FlashBlock(int64_t length)
      : queries(std::min(length, length >= 768   ? kLong
                                 : length >= 192 ? kMiddle
                                                 : kShort)),
        keys(std::min<int64_t>(length, kKeys)) {}

  static constexpr int64_t kLong = 256, kMiddle = 64, kShort = 32, kKeys = 512;
  int64_t queries, keys;
};

}  // namespace

ElementBytes::ElementBytes(const UnitTypes& types)
    : param(static_cast<int64_t>(element_bytes(types.param))),
      wide(wide_bytes(types.param)),
      gradient(static_cast<int64_t>(element_bytes(types.gradient))) {}

PaperFunction paper_linear(int64_t rows, const PaperWeight& weight, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * weight.out * bytes.param;
  f.trains = f.saves_input = weight.trains;
  // The weight's gradient is added where it belongs; of another type it is made, and converted,
  // first.
  const bool converts = weight.trains && bytes.gradient != bytes.param;
  if (!converts) return f;
  f.backward_working = weight.out * weight.in * (bytes.param + bytes.gradient);
  // The bias's is a sum of rows that are converted first.
  if (weight.has_bias)
    f.backward_working = std::max(f.backward_working, (rows + 1) * weight.out * bytes.gradient);
  return f;
}

PaperFunction paper_column_linear(const PaperRows& rows, const PaperWeight& weight,
                                  const ElementBytes& bytes) {
  PaperFunction f = paper_linear(rows.all, weight, bytes);
  if (!rows.are_dealt()) return f;
  const int64_t gathered = rows.all * weight.in * bytes.param;
  f.forward_peak = f.output + gathered;
  // The input again, for the weight's gradient, and the unsummed one of it.
  f.backward_working += (weight.trains ? 2 : 1) * gathered;
  return f;
}

PaperFunction paper_row_linear(const PaperRows& rows, const PaperWeight& weight,
                               const ElementBytes& bytes) {
  PaperFunction f = paper_linear(rows.all, weight, bytes);
  if (!rows.are_dealt()) return f;
  const int64_t all = f.output;
  f.output = rows.here * weight.out * bytes.param;
  f.forward_peak = f.output + all;
  f.backward_working += all;
  return f;
}

PaperFunction paper_layer_norm(int64_t rows, int64_t hidden, bool trains,
                               const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * hidden * bytes.param;
  f.saved = 2 * rows * bytes.param;
  f.saves_input = true;
  f.trains = trains;
  f.backward_working = (trains ? 4 : 0) * hidden * bytes.param;
  return f;
}

PaperFunction paper_rms_norm(int64_t rows, int64_t hidden, bool trains, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * hidden * bytes.param;
  f.saved = rows * bytes.wide;
  f.saves_input = true;
  f.trains = trains;
  // The weight's gradient has a sum for each chunk of rows.
  const int64_t step = rows_per_chunk(hidden), chunks = (rows + step - 1) / step;
  if (trains) f.backward_working = (chunks + 1) * hidden * bytes.wide;
  return f;
}

PaperFunction paper_embedding(int64_t rows, const PaperWeight& weight, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * weight.in * bytes.param;
  f.trains = weight.trains;
  if (bytes.gradient != bytes.param) f.backward_working = rows * weight.in * bytes.gradient;
  return f;
}

PaperFunction paper_class_and_positions(int64_t images, int64_t tokens, int64_t hidden, bool trains,
                                        const ElementBytes& bytes) {
  PaperFunction f;
  f.output = images * tokens * hidden * bytes.param;
  f.trains = trains;
  f.backward_working =
      (1 + (bytes.gradient != bytes.param ? images : 0)) * tokens * hidden * bytes.gradient;
  return f;
}

PaperFunction paper_windows(int64_t rows, int64_t hidden, const ElementBytes& bytes) {
  constexpr int64_t kWidth = 3;
  PaperFunction f;
  f.output = kWidth * rows * hidden * bytes.param;
  // Places without those beyond the clip, and which these are, beside one column of the windows.
  const int64_t column = rows * (hidden * bytes.param + static_cast<int64_t>(sizeof(int64_t)) + 1);
  f.forward_peak = f.output + column;
  f.backward_working = column;
  return f;
}

int64_t paper_biases_working(int64_t rows, const PaperWeight& bias, const ElementBytes& bytes) {
  return bias.trains && bytes.gradient != bytes.param ? rows * bias.out * bytes.gradient : 0;
}

PaperFunction paper_rotary(int64_t rows, int64_t width, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * width * bytes.param;
  return f;
}

PaperFunction paper_swiglu(int64_t rows, int64_t width, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * width * bytes.param;
  f.saves_input = true;
  return f;
}

PaperFunction paper_activation(int64_t rows, int64_t width, Activation activation,
                               const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * width * bytes.param;
  f.saves_output = activation == Activation::Relu;
  f.saves_input = !f.saves_output;
  return f;
}

namespace {

/// The three thirds of a batch are gathered one after the other, then the kernel runs.
class PaperAttention {
 public:
  PaperAttention(const AttentionSizes& sizes, const PaperHeads& heads, int64_t threads,
                 const ElementBytes& bytes)
      : sizes_(sizes), heads_(heads), threads_(threads), bytes_(bytes) {}

  int64_t saved() const { return 4 * query() + log_sums(); }

  int64_t forward_peak() const {
    const int64_t repeats = heads_.query / heads_.key_value;
    const int64_t values = 2 * query() + gather_peak(heads_.key_value, repeats);
    const FlashBlock block(sizes_.length);
    const int64_t kernel =
        saved() + threads_ * block.queries * (block.keys + 2 + heads_.dim) * bytes_.wide;
    return std::max({values, gather_peak(heads_.query, 1), kernel, saved() + result()});
  }

  int64_t backward_peak() const {
    const int64_t narrow = sizes_.tokens * heads_.query * heads_.dim * bytes_.param;
    const int64_t wide = sizes_.tokens * heads_.query * heads_.dim * bytes_.wide;
    int64_t gather = query();
    if (sizes_.padded()) gather += narrow + (bytes_.is_narrow() ? wide : 0);
    if (!sizes_.padded() && bytes_.is_narrow()) gather += narrow;
    const FlashBlock block(sizes_.length);
    const int64_t kernel = 4 * query() + threads_ * 2 * block.queries * block.keys * bytes_.wide;
    return std::max({gather, kernel, 3 * query() + join_peak()});
  }

 private:
  int64_t query() const { return sizes_.places() * heads_.query * heads_.dim * bytes_.wide; }
  int64_t log_sums() const { return sizes_.places() * heads_.query * bytes_.wide; }

  /// A third of `count` heads, repeated: selected, widened, repeated or made contiguous.
  int64_t gather_peak(int64_t count, int64_t repeats) const {
    const int64_t elements = sizes_.places() * count * heads_.dim;
    const int64_t widened = elements * (bytes_.param + bytes_.wide);
    const int64_t repeated = elements * bytes_.wide * (1 + repeats);
    return bytes_.is_narrow() ? std::max(widened, repeated) : repeated;
  }

  /// The output's tokens in order, of these the real ones, narrow.
  int64_t result() const {
    const int64_t elements = sizes_.tokens * heads_.query * heads_.dim;
    const int64_t real = sizes_.padded() ? elements * bytes_.wide : 0;
    const int64_t narrow = bytes_.is_narrow() ? elements * bytes_.param : 0;
    return std::max(query() + real, (sizes_.padded() ? real : query()) + narrow);
  }

  /// Gradients of the thirds: real tokens, summed over repeats, side by side.
  int64_t join_peak() const {
    const int64_t element = sizes_.tokens * heads_.dim * bytes_.wide;
    const bool repeats = heads_.query != heads_.key_value;
    const int64_t q = sizes_.padded() ? heads_.query * element : 0;
    const int64_t kv = sizes_.padded() || repeats ? heads_.key_value * element : 0;
    const int64_t joined = (heads_.query + 2 * heads_.key_value) * element;
    const int64_t unsummed = sizes_.padded() && repeats ? heads_.query * element : 0;
    const int64_t narrow = bytes_.is_narrow() ? joined / bytes_.wide * bytes_.param : 0;
    return std::max({q + 2 * kv + joined, q + 2 * kv + unsummed, joined + narrow});
  }

  const AttentionSizes& sizes_;
  const PaperHeads& heads_;
  int64_t threads_;
  const ElementBytes& bytes_;
};

}  // namespace

PaperFunction paper_attention(int64_t rows, const std::vector<AttentionSizes>& batches,
                              const PaperHeads& heads, int64_t threads, const ElementBytes& bytes) {
  PaperFunction f;
  f.output = rows * heads.query * heads.dim * bytes.param;
  f.saves_input = true;
  for (const AttentionSizes& sizes : batches) {
    if (sizes.length <= kLongestShortSegment) continue;
    const PaperAttention batch(sizes, heads, threads, bytes);
    f.forward_peak = std::max(f.forward_peak, f.output + f.saved + batch.forward_peak());
    f.backward_working = std::max(f.backward_working, batch.backward_peak());
    f.saved += batch.saved();
  }
  return f;
}

PaperFunction paper_context_attention(const PaperContext& context, const PaperHeads& heads,
                                      const ElementBytes& bytes) {
  const bool exchanges = context.group_tokens != context.tokens;
  const int64_t inputs = heads.query + 2 * heads.key_value;
  const int64_t own = context.group_tokens * heads.dim;  // elements of a head
  const int64_t keys = context.key_tokens * 2 * heads.key_value * heads.dim;
  const int64_t sums =
      own * heads.query * bytes.wide + context.group_tokens * heads.query * bytes.wide;
  PaperFunction f;
  const int64_t all_heads = heads.query * (exchanges ? context.group_tokens / context.tokens : 1);
  f.output = context.tokens * all_heads * heads.dim * bytes.param;
  f.saves_input = !exchanges;
  f.saves_output = !exchanges && !bytes.is_narrow();
  f.saved = context.group_tokens * heads.query * bytes.wide;
  if (exchanges) f.saved += own * inputs * bytes.param;
  if (!f.saves_output) f.saved += own * heads.query * bytes.param;
  // Keys as they travel, gathered and then in order, or coming while others are used; wide.
  const int64_t travelling = own * 2 * heads.key_value * bytes.param + 2 * keys * bytes.param;
  const int64_t widened =
      bytes.is_narrow() ? keys * bytes.wide + own * heads.query * bytes.wide : 0;
  f.forward_peak = f.saved + sums + travelling + widened;
  // The gradients of all inputs and of the keys at hand, wide, and these on their way.
  f.backward_working = own * inputs * bytes.wide + own * heads.query * bytes.wide +
                       keys * bytes.wide + keys * bytes.param + travelling + widened;
  return f;
}

PaperFunction paper_cross_entropy(int64_t rows, const PaperWeight& vocabulary,
                                  const ElementBytes& bytes) {
  const LogitTile tile(rows, vocabulary.out);
  const int64_t logits = std::min(rows, tile.rows) * tile.columns * bytes.param;
  const int64_t states = std::min(rows, tile.rows) * vocabulary.in;
  PaperFunction f;
  f.output = static_cast<int64_t>(element_bytes(DType::Float64));
  f.saved = rows * bytes.wide;
  f.saves_input = true;
  f.trains = vocabulary.trains;
  f.forward_peak = f.output + 3 * f.saved + std::max(logits, f.saved);
  // Many tiles of a narrow type are summed in the wide one; a gradient of another type is made, and
  // converted, first.
  const bool sums_wide = bytes.is_narrow() && tile.columns < vocabulary.out;
  const bool converts = vocabulary.trains && bytes.gradient != bytes.param;
  const int64_t added = tile.columns * vocabulary.in * (bytes.param + bytes.gradient);
  f.backward_working = logits + (sums_wide ? states * bytes.wide : 0) +
                       std::max(states * bytes.param, converts ? added : 0);
  return f;
}

PaperFunction paper_sum(int64_t bytes) {
  PaperFunction f;
  f.output = bytes;
  f.passes_gradient = true;
  return f;
}

PaperFunction paper_rows(int64_t bytes) {
  PaperFunction f;
  f.output = bytes;
  return f;
}

}  // namespace zea::detail
