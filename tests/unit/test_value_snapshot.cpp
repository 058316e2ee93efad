// SPDX-License-Identifier: Apache-2.0
// Whoever copies a value first, the writer, the thread in the background or the one that is about
// to change it, the writer gets what it was at the start; and nothing is copied twice.
#include "checkpoint/value_snapshot.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "zea/train/metrics.hpp"

namespace zea {
namespace {

using detail::OwnPiece;
using detail::ValueSnapshot;

constexpr int64_t kSize = sizeof(float);

/// Live values that a snapshot is taken of; every third piece never changes.
struct Live {
  std::vector<OwnPiece> pieces;
  std::vector<float> start;  ///< of all, in order
  int64_t changing_bytes = 0;

  explicit Live(const std::vector<int64_t>& sizes) {
    for (size_t p = 0; p < sizes.size(); ++p) {
      const at::Tensor values = at::empty({sizes[p]});
      for (int64_t i = 0; i < sizes[p]; ++i) {
        start.push_back(static_cast<float>(start.size() + 1));
        values.data_ptr<float>()[i] = start.back();
      }
      const bool changes = p % 3 != 1;
      pieces.push_back({nullptr, "", whole({sizes[p]}), values, changes});
      if (changes) changing_bytes += sizes[p] * kSize;
    }
  }

  void change() const {
    for (const OwnPiece& piece : pieces)
      if (piece.changes) piece.values.fill_(-1);
  }

  int64_t element_of(const ValueSnapshot::Part& part) const {
    int64_t element = part.first;
    for (size_t p = 0; p < part.piece; ++p) element += pieces[p].values.numel();
    return element;
  }
};

/// Takes one part and puts it where it belongs.
bool take(ValueSnapshot& snapshot, const Live& live, int64_t most_bytes, std::vector<float>& all) {
  std::vector<float> buffer(most_bytes / kSize);
  ValueSnapshot::Part part;
  if (!snapshot.take(part, most_bytes, reinterpret_cast<char*>(buffer.data()))) return false;
  std::copy_n(buffer.begin(), part.count, all.begin() + live.element_of(part));
  return true;
}

TEST(ValueSnapshot, GivesTheValuesOfTheStartInEveryOrderOfItsCallers) {
  int64_t num_live = 0, num_staged = 0, num_kept = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 draw(seed);
    std::vector<int64_t> sizes(1 + draw() % 12);
    for (int64_t& size : sizes) size = 1 + draw() % 40;
    const Live live(sizes);
    ValueSnapshot snapshot(live.pieces, DType::Float32);
    std::vector<float> found(live.start.size());
    const int64_t most = kSize * static_cast<int64_t>(1 + draw() % 16);
    const unsigned until_change = draw() % 40;

    for (unsigned turn = 0;; ++turn) {
      if (turn == until_change) {
        snapshot.keep();
        live.change();
      } else if (draw() % 2) {
        snapshot.stage(most);
      } else if (!take(snapshot, live, most, found)) {
        break;
      }
    }

    EXPECT_EQ(found, live.start) << seed;
    const int64_t copied = snapshot.staged_bytes() + snapshot.kept_bytes();
    EXPECT_LE(copied, live.changing_bytes) << seed;
    num_live += live.changing_bytes > copied;
    num_staged += snapshot.staged_bytes() > 0;
    num_kept += snapshot.kept_bytes() > 0;
  }
  EXPECT_GT(std::min({num_live, num_staged, num_kept}), 50);
}

TEST(ValueSnapshot, CopiesEachChangingValueOnceWhenNothingIsTaken) {
  const Live live({5, 70, 11, 1, 3, 64});
  ValueSnapshot snapshot(live.pieces, DType::Float32);

  EXPECT_TRUE(snapshot.stage(100));
  const int64_t staged = snapshot.staged_bytes();
  snapshot.keep();
  EXPECT_FALSE(snapshot.stage(100));
  snapshot.keep();

  EXPECT_EQ(staged, 100);
  EXPECT_EQ(snapshot.staged_bytes(), staged);
  EXPECT_EQ(snapshot.kept_bytes(), live.changing_bytes - staged);
}

TEST(ValueSnapshot, GivesTheValuesOfTheStartToThreads) {
  int64_t num_staged = 0, num_kept = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Live live({3000, 500, 2000, 1, 700, 4000});
    ValueSnapshot snapshot(live.pieces, DType::Float32);
    std::vector<float> found(live.start.size());
    std::thread stager([&] {
      while (snapshot.stage(256)) {
      }
    });
    std::vector<std::thread> writers;
    for (int number = 0; number < 2; ++number)
      writers.emplace_back([&] {
        while (take(snapshot, live, 512, found)) std::this_thread::yield();
      });
    std::this_thread::sleep_for(std::chrono::microseconds(seed));
    snapshot.keep();
    live.change();

    stager.join();
    for (std::thread& writer : writers) writer.join();

    ASSERT_EQ(found, live.start) << seed;
    ASSERT_LE(snapshot.staged_bytes() + snapshot.kept_bytes(), live.changing_bytes);
    num_staged += snapshot.staged_bytes() > 0;
    num_kept += snapshot.kept_bytes() > 0;
  }
  EXPECT_GT(num_staged, 0);
  EXPECT_GT(num_kept, 0);
}

TEST(ValueSnapshot, GivesMemoryBackAsItIsTaken) {
  constexpr int64_t kMiB = 1 << 20, kBytes = 64 * kMiB;
  const Live live({kBytes / kSize});
  ValueSnapshot snapshot(live.pieces, DType::Float32);
  std::vector<float> found(live.start.size());
  const int64_t before = resident_bytes();

  while (snapshot.stage(2 * kMiB)) {
  }
  const int64_t staged = resident_bytes();
  while (take(snapshot, live, 8 * kMiB, found)) {
  }

  EXPECT_EQ(snapshot.staged_bytes(), kBytes);
  EXPECT_GT(staged - before, kBytes * 3 / 4);
  EXPECT_LT(resident_bytes() - before, kBytes / 4);
  EXPECT_EQ(found, live.start);
}

}  // namespace
}  // namespace zea
