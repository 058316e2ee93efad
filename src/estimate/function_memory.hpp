// SPDX-License-Identifier: Apache-2.0
// The memory that each differentiable function of model/functions.hpp declares: one function here
// for each there, with the sizes of its temporaries as its source allocates them.
#pragma once

#include "estimate/memory_tape.hpp"

namespace zea::detail {

/// Bytes per element: of activations, of the type that sums are taken in, of gradient buffers.
struct ElementBytes {
  explicit ElementBytes(const UnitTypes& types);

  int64_t param, wide, gradient;
  bool on_device;
  bool multiplies_bf16;  ///< on the host, by these products:
  NarrowProducts products;
  int64_t library_blocks;  ///< of all threads, at most; 0: the library takes nothing of its own
  bool multiplies_pairs() const { return multiplies_bf16 && products == NarrowProducts::Pairs; }
  bool converts() const { return multiplies_bf16 && products == NarrowProducts::Converted; }
  /// oneDNN may: of bf16, and of fp32 on processors that are not Intel's.
  bool multiplies_by_blocks() const { return !on_device && param <= 4; }
  bool is_narrow() const { return param != wide; }  ///< bf16: sums need a wide copy
};

/// A product of (rows, inner) and (inner, columns), of which at least one lies along `inner`.
struct MatrixProduct {
  int64_t rows, inner, columns;

  /// By pairs, which must be whole.
  bool is_of_pairs(const ElementBytes& bytes) const {
    return bytes.multiplies_pairs() && inner % 2 == 0;
  }
  /// Temporaries where the result is made, and where it is added to sums of `sum_bytes` per
  /// element.
  int64_t working(const ElementBytes& bytes) const;
  int64_t adding(const ElementBytes& bytes, int64_t sum_bytes) const;
  /// The same where it is not of pairs: converted tiles, or the library's.
  int64_t adding_unpaired(const ElementBytes& bytes, int64_t sum_bytes) const;
  int64_t unpaired_working(const ElementBytes& bytes) const;
};

/// Temporaries where the product of a (rows, out) and b (rows, in), both summed over rows, is added
/// to a weight's gradient (out, in).
int64_t outer_product_working(int64_t rows, int64_t out, int64_t in, const ElementBytes& bytes);

/// The weight's matrix, and whether it trains.
struct WeightSpec {
  int64_t out = 0, in = 0;
  bool trains = false;
  bool has_bias = false;
};

/// Rows that all tp ranks hold together, and those here; and of those that travel, which are filled
/// up to as many of each rank.
struct RowCounts {
  int64_t all, here, travelling;
  bool are_dealt() const { return all != here; }
};

/// Linears whose weight is this rank's part: rows are gathered before a column's, and dealt after a
/// row's.
FunctionMemory column_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                    const ElementBytes& bytes);
FunctionMemory row_linear_memory(const RowCounts& rows, const WeightSpec& weight,
                                 const ElementBytes& bytes);
FunctionMemory linear_memory(int64_t rows, const WeightSpec& weight, const ElementBytes& bytes);
/// `numbers`: that are kept of a row: 1 of RMSNorm, 2 of LayerNorm, whose shift trains, too.
FunctionMemory norm_memory(int64_t rows, int64_t hidden, int64_t numbers, bool trains,
                           const ElementBytes& bytes);
/// Of heads of `dim` elements, `width` in all, of which the values are copied.
FunctionMemory head_norms_memory(int64_t rows, int64_t width, int64_t dim, bool trains,
                                 const ElementBytes& bytes);
/// Of all queries and all keys, of which this tp rank has `width` elements each.
FunctionMemory joint_norms_memory(int64_t rows, int64_t width, bool trains,
                                  const ElementBytes& bytes);
FunctionMemory layer_scale_memory(int64_t rows, int64_t hidden, bool trains,
                                  const ElementBytes& bytes);
FunctionMemory embedding_memory(int64_t rows, const WeightSpec& weight, const ElementBytes& bytes);
FunctionMemory interpolated_rows_memory(int64_t rows, const WeightSpec& weight,
                                        const ElementBytes& bytes);
/// With a table of so many learned tokens and positions.
FunctionMemory image_tokens_memory(int64_t rows, int64_t table, int64_t hidden, bool trains,
                                   const ElementBytes& bytes);
/// Windows of three columns, those of a row side by side.
FunctionMemory windows_memory(int64_t rows, int64_t hidden, const ElementBytes& bytes);
/// Temporaries of the gradient of a bias that was added in place.
int64_t biases_working(int64_t rows, const WeightSpec& bias, const ElementBytes& bytes);
FunctionMemory rotary_memory(int64_t rows, int64_t width, const ElementBytes& bytes);
FunctionMemory gated_memory(int64_t rows, int64_t width, const ElementBytes& bytes);
FunctionMemory activation_memory(int64_t rows, int64_t width, Activation activation,
                                 const ElementBytes& bytes);

struct HeadSizes {
  int64_t query, key_value, dim;
};
/// Of all tokens here, as the host's kernels compute it: beside these tensors a thread has tiles.
FunctionMemory attention_memory(int64_t rows, const HeadSizes& heads, const ElementBytes& bytes);
/// As the library computes it on a device where its kernels take rows of `segments` segments.
FunctionMemory ragged_attention_memory(int64_t rows, int64_t segments, const HeadSizes& heads,
                                       const ElementBytes& bytes);
/// Attention of `tokens` of this rank where others hold the rest of the row.
struct ContextSizes {
  int64_t tokens;        ///< of this rank
  int64_t group_tokens;  ///< of the ranks that exchange tokens for heads
  int64_t key_tokens;    ///< whose keys are here at once; 0: no keys travel
  bool passes_keys;      ///< from rank to rank, not gathered
};
FunctionMemory context_attention_memory(const ContextSizes& context, const HeadSizes& heads,
                                        const ElementBytes& bytes);
/// Of all tokens here, of which each sees a window, as the library computes it slice by slice.
FunctionMemory window_attention_memory(int64_t rows, int64_t window, const HeadSizes& heads,
                                       const ElementBytes& bytes);
/// `keeps`: forward keeps the logits for backward, if they are few.
/// `caps`: logits are capped.
FunctionMemory cross_entropy_memory(int64_t rows, const WeightSpec& vocabulary, bool keeps,
                                    bool caps, const ElementBytes& bytes);

/// x + y: the gradient goes to both as it is.
FunctionMemory sum_memory(int64_t bytes);
/// Some rows of a tensor, whose gradient is zero elsewhere; or all of them, times a number.
FunctionMemory rows_memory(int64_t bytes);
/// Sums of rows of another tensor.
FunctionMemory mixed_rows_memory(int64_t bytes);

}  // namespace zea::detail
