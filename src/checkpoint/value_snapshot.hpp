// SPDX-License-Identifier: Apache-2.0
// The values of one rank at the start of a save, while training goes on: a writer takes them from
// the front, straight from the live shards, one thread copies from the far end what the writer has
// not come to, and before the shards change the rest between the two is copied. Nothing is copied
// twice, and memory goes back to the system as soon as the writer has taken what lay there.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "own_pieces.hpp"
#include "zea/core/dtype.hpp"
#include "zea/io/page_memory.hpp"

namespace zea::detail {

class ValueSnapshot {
 public:
  /// A part of a piece; first and count are in elements.
  struct Part {
    size_t piece = 0;
    int64_t first = 0, count = 0;
  };

  ValueSnapshot(std::vector<OwnPiece> pieces, DType dtype);

  /// The next part in order, of at most so many bytes, is copied to `target`; false: all is taken.
  /// By any threads.
  bool take(Part& part, int64_t most_bytes, char* target);
  /// Copies the last values that are neither copied nor taken, at most so many bytes; false when
  /// none are left. By any threads.
  bool stage(int64_t most_bytes);
  /// Copies all that are neither; on return nothing reads what changes in the live shards any more.
  void keep();
  /// Gives the copies back; nothing may be taken any more.
  void release();

  const std::vector<OwnPiece>& pieces() const { return pieces_; }
  int64_t bytes() const { return offsets_.back() * element_bytes_; }
  int64_t kept_bytes() const;    ///< that keep() copied
  int64_t staged_bytes() const;  ///< that stage() copied

 private:
  bool copy_last(int64_t most_bytes, int64_t& counter);
  size_t piece_at(int64_t element) const;
  char* memory_of(int64_t element) const;
  void copy_part(size_t piece, int64_t begin, int64_t end, char* target) const;
  int64_t copy_to_memory(int64_t begin, int64_t end);
  void pass_what_never_changes();
  void reserve();
  void release_taken();

  std::vector<OwnPiece> pieces_;
  DType dtype_;
  int64_t element_bytes_;
  std::vector<int64_t> offsets_;  ///< first element of each piece in the order of all; and the end

  std::atomic<bool> is_keeping_ = false;

  mutable std::mutex mutex_;  ///< of what follows
  int64_t taken_ = 0;         ///< elements before this are taken
  int64_t copied_ = 0;        ///< what changes from here on is in memory
  int64_t kept_bytes_ = 0, staged_bytes_ = 0;
  std::shared_ptr<const PageMemory> memory_;
  int64_t memory_begin_ = 0;    ///< element where it starts
  int64_t released_bytes_ = 0;  ///< of it, from its start
};

}  // namespace zea::detail
