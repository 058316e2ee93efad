// SPDX-License-Identifier: Apache-2.0
#include "io/piece_copy.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/threads.hpp"
#include "files/page_memory.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

/// Larger parts gain nothing and only cost memory.
constexpr int64_t kMostPartBytes = 16 << 20;

struct Part {
  size_t piece;
  int64_t first, count;
};

std::vector<Part> cut_to_parts(const std::vector<Piece>& pieces, int64_t blocks) {
  std::vector<Part> parts;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const int64_t most = blocks * block_elements(pieces[p].dtype);
    const int64_t elements = pieces[p].extent.elements();
    for (int64_t first = 0; first < elements; first += most)
      parts.push_back({p, first, std::min(most, elements - first)});
  }
  return parts;
}

}  // namespace

Piece make_whole_piece(const TensorInfo& tensor, const std::string& state, const std::string& file,
                       const std::string& dataset, int64_t elements_of_each) {
  Piece piece{tensor.name,
              state,
              whole(in_blocks(tensor.shape, elements_of_each)),
              tensor.dtype,
              file,
              dataset,
              {},
              elements_of_each};
  size_hashes(piece);
  return piece;
}

void read_part(const WeightsSource& source, const StateSource* state, const Piece& piece,
               int64_t first, int64_t count, char* target) {
  const TensorInfo& tensor = find_tensor(source.tensors(), piece.tensor, source.describe());
  const Shape shape = in_blocks(tensor.shape, piece.elements_of_each);
  for (const Extent& box : boxes_inside(piece.extent, first, first + count)) {
    if (piece.state == kStateParameter)
      source.read(piece.tensor, shape, box, piece.dtype, target);
    else
      state->read_state(piece.tensor, piece.state, shape, box, piece.dtype, target);
    target += box.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
  }
}

void copy_pieces(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
                 const CopyLimits& limits, const TakePart& take) {
  ZEA_ASSERT(limits.threads >= 1);
  const int64_t most_bytes = std::min(kMostPartBytes, limits.buffer_bytes / limits.threads);
  const int64_t blocks = std::max<int64_t>(1, most_bytes / kHashBlockBytes);
  const std::vector<Part> parts = cut_to_parts(pieces, blocks);
  std::vector<PageMemory> buffers;  // of the threads; what none touches takes no memory
  for (int t = 0; t < limits.threads; ++t) buffers.emplace_back(blocks * kHashBlockBytes);
  parallel_for(limits.threads, parts.size(), [&](int thread, size_t p) {
    const Part& part = parts[p];
    char* buffer = buffers[static_cast<size_t>(thread)].data();
    read_part(source, state, pieces[part.piece], part.first, part.count, buffer);
    take(pieces[part.piece], part.first, part.count, buffer);
  });
}

int64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors)
    bytes += num_elements(tensor.shape) * static_cast<int64_t>(element_bytes(tensor.dtype));
  return bytes;
}

void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take) {
  const auto size = static_cast<int64_t>(element_bytes(dtype));
  const int64_t elements = num_elements(tensor.shape);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(buffer.size()) / size);
  buffer.resize(std::max(buffer.size(), static_cast<size_t>(size)));
  for (int64_t first = 0; first < elements; first += most) {
    const int64_t end = std::min(elements, first + most);
    char* position = buffer.data();
    for (const Extent& box : boxes_of_range(tensor.shape, first, end)) {
      source.read(tensor.name, tensor.shape, box, dtype, position);
      position += box.elements() * size;
    }
    take(first, end - first, buffer.data());
  }
}

}  // namespace zea
