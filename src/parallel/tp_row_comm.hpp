// SPDX-License-Identifier: Apache-2.0
// Rows of activations among tp ranks: gathered from their slices, or summed and scattered to them.
// If every rank holds all rows, gathering does nothing, and scattering is an all-reduce. Each is
// started first and finished later, so that GEMMs run in between.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <memory>

#include "comm/collectives.hpp"
#include "core/kernel_sizes.hpp"
#include "model/layers.hpp"
#include "model/parameter_function.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea::detail {

/// Temporary memory of one function of a layer: on the host, memory that the ranks' collectives
/// reach in place. A function has at most one buffer of each kind at a time, and none when it
/// returns.
class TpBuffers {
 public:
  enum class Kind { Gathered, Partial };

  explicit TpBuffers(Collectives& tp) : tp_(&tp) {}

  Collectives& tp() const { return *tp_; }
  /// (rows, width), which must be equal on all ranks. Collective.
  at::Tensor take(Kind kind, int64_t rows, int64_t width, const at::TensorOptions& options);

 private:
  struct Buffer {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
  };

  Collectives* tp_;
  std::array<Buffer, 2> buffers_;
};

/// Rows in transfer: from `source`, which is kept until they are taken, into `result`. If `result`
/// is undefined, `source` is a host buffer into which they return and from which they are copied.
class InFlightRows {
 public:
  InFlightRows(at::Tensor source, at::Tensor result, std::vector<Pending> chunks = {})
      : source_(std::move(source)), result_(std::move(result)), chunks_(std::move(chunks)) {}
  InFlightRows(at::Tensor source, at::Tensor result, Pending pending)
      : source_(std::move(source)), result_(std::move(result)) {
    chunks_.push_back(std::move(pending));
  }

  /// Waits. To be called once.
  at::Tensor take();

 private:
  at::Tensor source_, result_;
  std::vector<Pending> chunks_;
};

/// A chunk of rows: a part of each rank's rows, which is sent while other chunks are multiplied. In
/// memory the chunks follow each other, and each holds its parts in the order of the ranks.
struct RowChunk {
  /// The part of one rank, or the equal parts of consecutive ranks.
  struct Parts {
    int64_t among_all;  ///< first row among the rows of all ranks
    int64_t stride;     ///< between parts among the rows of all ranks
    int64_t in_chunks;  ///< first row among the chunks
    int64_t ranks, rows;
  };
  int64_t begin = 0;       ///< first row among the chunks
  Counts travelling = {};  ///< rows of each rank's part
  TokenRange own = {};     ///< this rank's part, among its padded rows
  std::vector<Parts> parts = {};
};

/// The rows of one call of a layer.
class TpRowComm {
 public:
  TpRowComm(TpBuffers& buffers, RowsPerTpRank shares);

  /// x (rows here, width) -> (rows of all ranks, width), good until the function returns.
  InFlightRows gather(const at::Tensor& x) const;

  /// Returns memory for sum(): (rows of all ranks, width), of any content. `rows` are those of all
  /// ranks.
  at::Tensor partial(int64_t rows, int64_t width, const at::TensorOptions& options) const;
  /// The ranks' partial() (rows of all ranks, width) -> their sum's (rows here, width).
  InFlightRows sum(const at::Tensor& partial) const;

  // The same in chunks: a chunk is multiplied once it has arrived, or sent once it is multiplied.

  /// Returns in how many chunks rows of `width` elements are gathered.
  int sharded_chunks(const RowChunks& chunks, int64_t width) const;
  ArrivingProduct gather_to_multiply(const at::Tensor& x, int chunks) const;
  at::Tensor in_chunks(const at::Tensor& x, int chunks) const;
  InFlightRows summed_product(const at::Tensor& a, const at::Tensor& b, int chunks) const;

  TpBuffers& buffers() const { return *buffers_; }
  Collectives& tp() const { return buffers_->tp(); }
  bool are_sharded() const { return !shares_.empty(); }
  const RowsPerTpRank& shares() const { return shares_; }

 private:
  Counts counts(int64_t width) const;
  /// Returns the chunks that have rows.
  std::vector<RowChunk> chunks(int count) const;

  TpBuffers* buffers_;
  RowsPerTpRank shares_, travelling_;
};

// The autograd functions of sharded layers. Those that save their input save only this rank's rows;
// the rows of other ranks are gathered again in backward.

/// Layers::gathered_rows() and summed_rows(), each of which is the other's backward.
at::Tensor tp_gathered_rows(const TpRowComm& rows, const at::Tensor& x);
at::Tensor tp_summed_rows(const TpRowComm& rows, const at::Tensor& x);
at::Tensor tp_joint_head_norms(const TpRowComm& rows, const at::Tensor& qkv, Parameter& query,
                               Parameter& key, const NormSpec& spec);
at::Tensor tp_embedding(const TpRowComm& rows, const at::Tensor& ids, Parameter& weight,
                        int64_t vocabulary);
at::Tensor tp_cross_entropy(const TpRowComm& rows, const at::Tensor& x, Parameter& weight,
                            const at::Tensor& targets, const LogitSpec& spec);
at::Tensor tp_logits(const TpRowComm& rows, const at::Tensor& x, Parameter& weight,
                     const LogitSpec& spec);

/// The rows of a vocabulary's matrix that a tp rank has, without padding.
struct VocabularyRange {
  int64_t begin, count;
};

inline VocabularyRange vocabulary_range(const Collectives& tp, const Parameter& weight,
                                        int64_t vocabulary) {
  const int64_t rows = weight.shape()[0], begin = std::min(vocabulary, tp.rank() * rows);
  return {begin, std::min(vocabulary - begin, rows)};
}

inline void remember_rows(Context* ctx, const TpRowComm& rows) {
  ctx->saved_data["buffers"] = reinterpret_cast<int64_t>(&rows.buffers());
  ctx->saved_data["shares"] = rows.shares();
}

inline TpRowComm recall_rows(Context* ctx) {
  return {*reinterpret_cast<TpBuffers*>(ctx->saved_data.at("buffers").toInt()),
          ctx->saved_data.at("shares").toIntVector()};
}

/// The rows of a linear, for the model's function.
class LinearRows : public SharedRows {
 public:
  LinearRows(TpRowComm rows, const RowChunks& chunks) : rows_(std::move(rows)), chunks_(chunks) {}

  bool are_sharded() const override { return rows_.are_sharded(); }
  ArrivingRows gather(const at::Tensor& x) const override { return arriving(rows_.gather(x)); }
  ArrivingProduct gather_to_multiply(const at::Tensor& x) const override;
  at::Tensor in_chunks(const at::Tensor& x, int chunks) const override {
    return rows_.in_chunks(x, chunks);
  }
  ArrivingRows summed_product(const at::Tensor& a, const at::Tensor& b) const override;

 private:
  static ArrivingRows arriving(InFlightRows rows) {
    return [on_way = std::make_shared<InFlightRows>(std::move(rows))] { return on_way->take(); };
  }

  TpRowComm rows_;
  RowChunks chunks_;
};

}  // namespace zea::detail
