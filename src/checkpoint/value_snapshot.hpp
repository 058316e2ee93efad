// SPDX-License-Identifier: Apache-2.0
// A snapshot of one rank's values at the start of a save, while training goes on. A writer takes
// them from the front, straight from the live shards. Before the shards change, the rest is copied.
// The owner keeps the memory for the next save: touching it for the first time costs more than
// copying.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/held_boxes.hpp"
#include "files/direct_write.hpp"

namespace zea::detail {

/// Copies device memory on a stream of its own, so that the device computes meanwhile, through two
/// blocks of pinned memory: one is filled while the other is emptied.
class DeviceReads {
 public:
  /// Reads values as they are after the work that this thread's stream of the device has so
  /// far.
  explicit DeviceReads(at::Device device);

  /// Copies `count` bytes of contiguous `values` from byte `first` on to `target`; returns
  /// when they are there. Any thread may call it; nothing may change these bytes meanwhile.
  void read(const at::Tensor& values, int64_t first, int64_t count, char* target);

  static constexpr int64_t kBlockBytes = int64_t{4} << 20;

 private:
  struct Block {
    at::Tensor bytes;
    c10::Event filled;
  };

  std::mutex mutex_;  ///< guards the following
  c10::Stream stream_;
  std::array<Block, 2> blocks_;
};

class ValueSnapshot {
 public:
  /// A part of a piece: whole blocks, except at the piece's end. First and count are in
  /// elements.
  struct Part {
    size_t piece = 0;
    int64_t first = 0, count = 0;
    const char* data = nullptr;  ///< until give_back()
  };

  /// Takes values as they are when this thread's work on their device is done, but does not
  /// wait for it. Blocks hold whole elements. `memory` is replaced if it is too small for the
  /// copies. `origin` may be null if files have all pieces as they are held.
  ValueSnapshot(std::vector<OwnPiece> pieces, int64_t block_bytes, PageMemory& memory,
                const FrozenOrigin* origin = nullptr);

  /// Takes the next part in order, of at most so many bytes (whole blocks); it lies in
  /// `buffer` if it was not copied yet. Returns false when all is taken. Any threads may call
  /// it.
  bool take(Part& part, int64_t most_bytes, char* buffer);
  /// Ends the use of a part; the system may have the memory of its copy.
  void give_back(const Part& part);
  /// Copies all that is neither copied nor taken. On return nothing reads changing values of
  /// the live shards any more.
  void keep();
  /// Offers all copies to the system; ends the snapshot.
  void release();

  const std::vector<OwnPiece>& pieces() const { return pieces_; }
  int64_t bytes() const { return offsets_.back(); }
  int64_t kept_bytes() const;  ///< copied by keep()
  /// Returns the bytes that are rounded, as their origin has changed.
  int64_t rounded_bytes() const { return rounded_bytes_; }

 private:
  /// Bytes in the order of all.
  struct Range {
    int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };
  class Busy;

  void place_pieces();
  size_t piece_at(int64_t byte) const;
  int64_t place_of(int64_t byte) const;
  Range next_part(int64_t most_bytes) const;
  bool is_live(Range part) const;
  bool may_take(Range part) const;
  void pass_what_never_changes();
  void reserve();
  void copy_live(size_t piece, Range range, char* target);
  void copy_held(const at::Tensor& values, int64_t first, int64_t count, char* target);
  int64_t copy_to_memory(Range range);
  int64_t copy_by_threads(Range range);

  std::vector<OwnPiece> pieces_;
  std::optional<DeviceReads> device_reads_;  ///< of pieces on a device
  const FrozenOrigin* origin_;
  std::atomic<int64_t> rounded_bytes_ = 0;
  int64_t block_bytes_;
  std::vector<int64_t> offsets_;  ///< first byte of each piece in the order of all; and the end
  std::vector<int64_t> places_;   ///< in the memory, of each piece; and the end

  mutable std::mutex mutex_;  ///< guards the following
  std::condition_variable changed_;
  int64_t taken_ = 0;    ///< bytes before this are taken
  int64_t claimed_ = 0;  ///< changing values from here on are in memory or on their way there
  int reading_live_ = 0;
  Range keeping_;                 ///< on its way into memory
  std::multiset<int64_t> given_;  ///< first bytes of the parts that are not given back
  int64_t kept_bytes_ = 0;
  PageMemory& memory_;
  int64_t offered_bytes_ = 0;  ///< of the memory, from its start
};

}  // namespace zea::detail
