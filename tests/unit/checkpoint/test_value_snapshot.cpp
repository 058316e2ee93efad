// SPDX-License-Identifier: Apache-2.0
// A value may be copied first by the writer, by the background thread or by the thread that is
// about to change it: the writer always gets the value from the start of the save; and nothing is
// copied twice.
#include "checkpoint/value_snapshot.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>

namespace zea::test_value_snapshot {
namespace {

using detail::OwnPiece;
using detail::ValueSnapshot;

constexpr int64_t kSize = sizeof(float);

/// Live values that a snapshot is taken of; every third piece never changes, and is in another
/// type.
struct Live {
  std::vector<OwnPiece> pieces;
  std::vector<char> start;  ///< of all, in order
  int64_t changing_bytes = 0;

  explicit Live(const std::vector<int64_t>& sizes) {
    for (size_t p = 0; p < sizes.size(); ++p) {
      const bool changes = p % 3 != 1;
      const auto first = static_cast<double>(start.size());
      const at::Tensor values = at::arange(first + 1, first + 1 + static_cast<double>(sizes[p]))
                                    .to(changes ? at::kFloat : at::kBFloat16);
      const char* bytes = static_cast<const char*>(values.const_data_ptr());
      start.insert(start.end(), bytes, bytes + values.nbytes());
      pieces.push_back({nullptr, "", 1, whole({sizes[p]}), values, changes, dtype_of(values)});
      if (changes) changing_bytes += sizes[p] * kSize;
    }
  }

  void change() const {
    for (const OwnPiece& piece : pieces)
      if (piece.changes) piece.values.fill_(-1);
  }

  int64_t size_of(const ValueSnapshot::Part& part) const {
    return static_cast<int64_t>(pieces[part.piece].values.element_size());
  }

  /// Puts a part where it belongs.
  void put(const ValueSnapshot::Part& part, std::vector<char>& all) const {
    int64_t begin = part.first * size_of(part);
    for (size_t p = 0; p < part.piece; ++p) begin += pieces[p].bytes();
    std::memcpy(all.data() + begin, part.data, part.count * size_of(part));
  }
};

/// Returns the bytes of this process that the system may reclaim at any time.
int64_t offered_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (int64_t kib = 0; word == "LazyFree:" && file >> kib) return kib << 10;
  return -1;
}

/// Takes one part and puts it where it belongs.
bool take(ValueSnapshot& snapshot, const Live& live, int64_t most_bytes, std::vector<char>& all) {
  std::vector<char> buffer(most_bytes);
  ValueSnapshot::Part part;
  if (!snapshot.take(part, most_bytes, buffer.data())) return false;
  live.put(part, all);
  snapshot.give_back(part);
  return true;
}

TEST(ValueSnapshot, GivesTheValuesOfTheStartInEveryOrderOfItsCallers) {
  int64_t num_live = 0, num_kept = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 draw(seed);
    std::vector<int64_t> sizes(1 + draw() % 12);
    for (int64_t& size : sizes) size = 1 + draw() % 40;
    const Live live(sizes);
    const int64_t block = kSize * static_cast<int64_t>(1 + draw() % 16);
    PageMemory memory;
    ValueSnapshot snapshot(live.pieces, block, memory);
    std::vector<char> found(live.start.size());
    const int64_t most = block * static_cast<int64_t>(1 + draw() % 3);
    const unsigned until_change = draw() % 40;

    for (unsigned turn = 0;; ++turn) {
      if (turn == until_change) {
        snapshot.keep();
        live.change();
      } else if (!take(snapshot, live, most, found)) {
        break;
      }
    }

    EXPECT_EQ(found, live.start) << seed;
    const int64_t copied = snapshot.kept_bytes();
    EXPECT_LE(copied, live.changing_bytes) << seed;
    num_live += live.changing_bytes > copied;
    num_kept += copied > 0;
  }
  EXPECT_GT(std::min(num_live, num_kept), 50);
}

TEST(ValueSnapshot, CopiesEachChangingValueOnceWhenNothingIsTaken) {
  const Live live({5, 70, 11, 1, 3, 64});
  PageMemory memory;
  ValueSnapshot snapshot(live.pieces, 25 * kSize, memory);

  snapshot.keep();
  snapshot.keep();

  EXPECT_EQ(snapshot.kept_bytes(), live.changing_bytes);
}

TEST(ValueSnapshot, GivesTheValuesOfTheStartToThreads) {
  int64_t num_kept = 0;
  PageMemory memory;  // as from save to save
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Live live({3000, 500, 2000, 1, 700, 4000});
    ValueSnapshot snapshot(live.pieces, 256, memory);
    std::vector<char> found(live.start.size());
    std::vector<std::thread> writers;
    for (int number = 0; number < 2; ++number)
      writers.emplace_back([&] {
        while (take(snapshot, live, 512, found)) std::this_thread::yield();
      });
    std::this_thread::sleep_for(std::chrono::microseconds(seed));
    snapshot.keep();
    live.change();

    for (std::thread& writer : writers) writer.join();

    ASSERT_EQ(found, live.start) << seed;
    ASSERT_LE(snapshot.kept_bytes(), live.changing_bytes);
    num_kept += snapshot.kept_bytes() > 0;
  }
  EXPECT_GT(num_kept, 0);
}

TEST(ValueSnapshot, LargeCopiesLieAsAFileIsWrittenFrom) {
  const Live live({100000, 7, 50001, 30000});
  PageMemory memory;
  ValueSnapshot snapshot(live.pieces, 64 << 10, memory);
  std::vector<char> buffer(128 << 10);
  int num_copied = 0;

  snapshot.keep();
  for (ValueSnapshot::Part part; snapshot.take(part, 128 << 10, buffer.data());) {
    const bool is_copy = part.data != buffer.data();
    EXPECT_EQ(is_copy, live.pieces[part.piece].changes);
    EXPECT_EQ(is_copy ? reinterpret_cast<uintptr_t>(part.data) % kPageBytes : 0, 0);
    num_copied += is_copy;
  }

  EXPECT_EQ(num_copied, 4 + 2 + 1);
}

TEST(ValueSnapshot, OffersMemoryToTheSystemAsItIsWritten) {
  constexpr int64_t kMiB = 1 << 20, kBytes = 64 * kMiB;
  const Live live({kBytes / kSize});
  PageMemory memory;
  ValueSnapshot snapshot(live.pieces, 2 * kMiB, memory);
  std::vector<char> found(live.start.size());
  ValueSnapshot::Part last;

  snapshot.keep();
  EXPECT_EQ(offered_bytes(), 0);
  for (int part = 0; part < 6; ++part) take(snapshot, live, 8 * kMiB, found);
  EXPECT_GE(offered_bytes(), kBytes / 2);
  EXPECT_LE(offered_bytes(), 48 * kMiB);
  EXPECT_TRUE(snapshot.take(last, 8 * kMiB, nullptr));
  take(snapshot, live, 8 * kMiB, found);
  EXPECT_LE(offered_bytes(), 48 * kMiB) << "the part before the last is still being written";
  live.put(last, found);
  snapshot.release();

  EXPECT_EQ(snapshot.kept_bytes(), kBytes);
  EXPECT_EQ(found, live.start);
  EXPECT_GE(offered_bytes(), kBytes * 3 / 4);
}

}  // namespace
}  // namespace zea::test_value_snapshot
