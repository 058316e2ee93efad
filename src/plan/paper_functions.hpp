// SPDX-License-Identifier: Apache-2.0
// What each differentiable function of model/functions.hpp declares: one function here for each
// there, with the sizes of its temporaries as its source allocates them.
#pragma once

#include "paper_tape.hpp"

namespace zea::detail {

/// Bytes per element: of activations, of the type that sums are taken in, of gradient buffers.
struct ElementBytes {
  explicit ElementBytes(const UnitTypes& types);

  int64_t param, wide, gradient;
  bool adds_narrow_products;
  bool is_narrow() const { return param != wide; }  ///< bf16: sums need a wide copy
  /// A weight's gradient is made in the type of activations before it is added.
  bool converts() const { return gradient != param && !adds_narrow_products; }
};

/// The weight's matrix, and whether it trains.
struct PaperWeight {
  int64_t out = 0, in = 0;
  bool trains = false;
  bool has_bias = false;
};

/// Rows that all tp ranks hold together, and those here.
struct PaperRows {
  int64_t all, here;
  bool are_dealt() const { return all != here; }
};

/// Linears whose weight is this rank's part: rows are gathered before a column's, and dealt after a
/// row's.
PaperFunction paper_column_linear(const PaperRows& rows, const PaperWeight& weight,
                                  const ElementBytes& bytes);
PaperFunction paper_row_linear(const PaperRows& rows, const PaperWeight& weight,
                               const ElementBytes& bytes);
PaperFunction paper_linear(int64_t rows, const PaperWeight& weight, const ElementBytes& bytes);
PaperFunction paper_layer_norm(int64_t rows, int64_t hidden, bool trains,
                               const ElementBytes& bytes);
PaperFunction paper_rms_norm(int64_t rows, int64_t hidden, bool trains, const ElementBytes& bytes);
PaperFunction paper_embedding(int64_t rows, const PaperWeight& weight, const ElementBytes& bytes);
PaperFunction paper_class_and_positions(int64_t images, int64_t tokens, int64_t hidden, bool trains,
                                        const ElementBytes& bytes);
/// Windows of three columns, those of a row side by side.
PaperFunction paper_windows(int64_t rows, int64_t hidden, const ElementBytes& bytes);
/// Temporaries of the gradient of a bias that was added in place.
int64_t paper_biases_working(int64_t rows, const PaperWeight& bias, const ElementBytes& bytes);
PaperFunction paper_rotary(int64_t rows, int64_t width, const ElementBytes& bytes);
PaperFunction paper_swiglu(int64_t rows, int64_t width, const ElementBytes& bytes);
PaperFunction paper_activation(int64_t rows, int64_t width, Activation activation,
                               const ElementBytes& bytes);

struct PaperHeads {
  int64_t query, key_value, dim;
};
/// Of all tokens here, as the host's kernels compute it: beside these tensors a thread has tiles.
PaperFunction paper_attention(int64_t rows, const PaperHeads& heads, const ElementBytes& bytes);
/// Attention of `tokens` of this rank where others hold the rest of the row.
struct PaperContext {
  int64_t tokens;        ///< of this rank
  int64_t group_tokens;  ///< of the ranks that exchange tokens for heads
  int64_t key_tokens;    ///< whose keys are here at once; 0: no keys travel
  bool passes_keys;      ///< from rank to rank, not gathered
};
PaperFunction paper_context_attention(const PaperContext& context, const PaperHeads& heads,
                                      const ElementBytes& bytes);
/// `keeps`: forward keeps the logits for backward, if they are few.
PaperFunction paper_cross_entropy(int64_t rows, const PaperWeight& vocabulary, bool keeps,
                                  const ElementBytes& bytes);

/// x + y: the gradient goes to both as it is.
PaperFunction paper_sum(int64_t bytes);
/// Some rows of a tensor; its gradient is zero elsewhere.
PaperFunction paper_rows(int64_t bytes);

}  // namespace zea::detail
