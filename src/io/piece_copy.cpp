// SPDX-License-Identifier: Apache-2.0
#include "zea/io/piece_copy.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "tensor_request.hpp"
#include "zea/core/error.hpp"
#include "zea/io/page_memory.hpp"

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

/// What the threads share.
class Copy {
 public:
  Copy(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
       int64_t blocks_of_part, const TakePart& take)
      : source_(source),
        state_(state),
        pieces_(pieces),
        parts_(cut_to_parts(pieces, blocks_of_part)),
        part_bytes_(blocks_of_part * kHashBlockBytes),
        take_(take) {}

  size_t parts() const { return parts_.size(); }

  /// The work of one thread.
  void run() noexcept {
    try {
      const PageMemory buffer(part_bytes_);
      for (size_t next = next_++; next < parts_.size(); next = next_++)
        move(parts_[next], buffer.data());
    } catch (...) {
      next_ = parts_.size();
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void move(const Part& part, char* buffer) {
    Piece& piece = pieces_[part.piece];
    read_part(source_, state_, piece, part.first, part.count, buffer);
    take_(piece, part.first, part.count, buffer);
  }

  const WeightsSource& source_;
  const StateSource* state_;
  std::vector<Piece>& pieces_;
  std::vector<Part> parts_;
  int64_t part_bytes_;
  const TakePart& take_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;  ///< of failure_
  std::exception_ptr failure_;
};

}  // namespace

Piece make_whole_piece(const TensorInfo& tensor, const std::string& state, const std::string& file,
                       const std::string& dataset) {
  Piece piece{tensor.name, state, whole(tensor.shape), tensor.dtype, file, dataset, {}};
  size_hashes(piece);
  return piece;
}

void read_part(const WeightsSource& source, const StateSource* state, const Piece& piece,
               int64_t first, int64_t count, char* target) {
  const TensorInfo& tensor = find_tensor(source.tensors(), piece.tensor, source.describe());
  for (Extent box : boxes_of_range(piece.extent.length, first, first + count)) {
    for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += piece.extent.offset[d];
    if (piece.state == kStateParameter)
      source.read(piece.tensor, tensor.shape, box, piece.dtype, target);
    else
      state->read_state(piece.tensor, piece.state, tensor.shape, box, piece.dtype, target);
    target += box.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
  }
}

void copy_pieces(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
                 const CopyLimits& limits, const TakePart& take) {
  ZEA_ASSERT(limits.threads >= 1);
  const int64_t part_bytes = std::min(kMostPartBytes, limits.buffer_bytes / limits.threads);
  Copy copy(source, state, pieces, std::max<int64_t>(1, part_bytes / kHashBlockBytes), take);
  const auto most = static_cast<int64_t>(copy.parts());
  std::vector<std::jthread> others;
  for (int64_t t = 1; t < std::min<int64_t>(limits.threads, most); ++t)
    others.emplace_back([&copy] { copy.run(); });
  copy.run();
  others.clear();  // joins
  copy.rethrow();
}

}  // namespace zea
