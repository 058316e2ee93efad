// SPDX-License-Identifier: Apache-2.0
// Reads whole models and optimizer states in parts, with several threads: memory is bounded by
// buffers, not by the size of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zea/checkpoint.hpp"

namespace zea {

/// Receives packed elements [first, first + count) of a piece: whole hash blocks, except the
/// piece's last. Several threads call it at once.
using TakePart = std::function<void(Piece& piece, int64_t first, int64_t count, const void* data)>;

struct CopyLimits {
  int threads = 1;
  int64_t buffer_bytes = 64 << 20;  ///< of all threads together; each has at least a block
};

/// Returns a piece that covers `tensor`, without hashes. `dataset` is its name in `file`.
Piece make_whole_piece(const TensorInfo& tensor, const std::string& state, const std::string& file,
                       const std::string& dataset, int64_t elements_of_each = 1);

/// Reads packed elements [first, first + count) of `piece` in its type; optimizer states are read
/// from `state`.
void read_part(const WeightsSource& source, const StateSource* state, const Piece& piece,
               int64_t first, int64_t count, char* target);

/// Reads every piece in its type, in any order. Optimizer states are read from `state`, which may
/// be null if no piece has any. The first exception of a thread ends all threads.
void copy_pieces(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
                 const CopyLimits& limits, const TakePart& take);

/// Receives row-major elements [first, first + count) of a tensor.
using TakeElements = std::function<void(int64_t first, int64_t count, const void* data)>;

/// Returns the size in bytes of all tensors.
int64_t total_bytes(const std::vector<TensorInfo>& tensors);

/// Reads all of `tensor` as `dtype` in order; `buffer` holds one part of it.
void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take);

}  // namespace zea
