// SPDX-License-Identifier: Apache-2.0
// Reading whole models and optimizer states part by part, with several threads: memory is bounded
// by buffers, not by the model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zea/checkpoint.hpp"

namespace zea {

/// Takes packed elements [first, first + count) of a piece; whole hash blocks, but for the piece's
/// last. Several threads call it at once.
using TakePart = std::function<void(Piece& piece, int64_t first, int64_t count, const void* data)>;

struct CopyLimits {
  int threads = 1;
  int64_t buffer_bytes = 64 << 20;  ///< of all threads together; at least a block for each
};

/// Returns a piece of all of `tensor`, without hashes. `dataset` is its name in `file`.
Piece make_whole_piece(const TensorInfo& tensor, const std::string& state, const std::string& file,
                       const std::string& dataset, int64_t elements_of_each = 1);

/// Reads packed elements [first, first + count) of `piece` as elements of its type; optimizer
/// states come from `state`.
void read_part(const WeightsSource& source, const StateSource* state, const Piece& piece,
               int64_t first, int64_t count, char* target);

/// Reads every piece as elements of its type, in any order. States come from `state`, which may be
/// null where no piece has any. The first exception of a thread ends all.
void copy_pieces(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
                 const CopyLimits& limits, const TakePart& take);

/// Takes row-major elements [first, first + count) of a tensor.
using TakeElements = std::function<void(int64_t first, int64_t count, const void* data)>;

/// Returns the bytes of the elements of all tensors.
int64_t total_bytes(const std::vector<TensorInfo>& tensors);

/// Reads all of `tensor` as `dtype` in order; `buffer` holds one part of it.
void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take);

}  // namespace zea
