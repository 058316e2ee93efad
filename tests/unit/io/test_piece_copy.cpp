// SPDX-License-Identifier: Apache-2.0
#include "zea/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "io/weights_file.hpp"
#include "support/files.hpp"

namespace zea::test_piece_copy {
namespace {

/// Element i of every tensor is i.
class CountingSource : public WeightsSource {
 public:
  explicit CountingSource(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {}

  std::string describe() const override { return "numbers"; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return "{}"; }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    if (name == "bad") throw WeightsError("bad tensor");
    EXPECT_EQ(dtype, DType::Float64);
    auto* values = static_cast<double*>(target);
    for (const CopyRun& run : copy_runs(extent, whole(shape), extent))
      for (int64_t i = 0; i < run.elements; ++i)
        values[run.target_element + i] = static_cast<double>(run.source_element + i);
  }

 private:
  std::vector<TensorInfo> tensors_;
};

std::vector<Piece> pieces_of(const std::vector<TensorInfo>& tensors) {
  std::vector<Piece> pieces;
  for (const TensorInfo& tensor : tensors)
    pieces.push_back(make_whole_piece(tensor, kStateParameter, kStateFile, tensor.name));
  return pieces;
}

TEST(PieceCopy, GivesEveryElementOnceWithTheHashesOfItsBlocks) {
  const int64_t large = 3 * block_elements(DType::Float64) + 17;
  const std::vector<TensorInfo> tensors = {{"a", {large}, DType::Float64},
                                           {"b", {}, DType::Float64},
                                           {"c", {0, 3}, DType::Float64},
                                           {"d", {1031, 700}, DType::Float64}};
  const CountingSource source(tensors);
  for (const int threads : {1, 3, 8}) {
    std::vector<Piece> pieces = pieces_of(tensors);
    std::vector<std::vector<double>> copied;
    for (const TensorInfo& tensor : tensors)
      copied.emplace_back(static_cast<size_t>(num_elements(tensor.shape)), -1.0);
    std::atomic<int64_t> elements = 0;

    copy_pieces(source, nullptr, pieces, {.threads = threads, .buffer_bytes = 1},
                [&](Piece& piece, int64_t first, int64_t count, const void* data) {
                  EXPECT_EQ(first % block_elements(piece.dtype), 0);
                  hash_part(piece, first, count, data);
                  std::copy_n(static_cast<const double*>(data), count,
                              copied[static_cast<size_t>(&piece - pieces.data())].begin() + first);
                  elements += count;
                });

    EXPECT_EQ(elements, large + 1 + 1031 * 700);
    for (size_t p = 0; p < pieces.size(); ++p) {
      for (size_t i = 0; i < copied[p].size(); ++i)
        ASSERT_EQ(copied[p][i], static_cast<double>(i)) << pieces[p].tensor;
      EXPECT_EQ(pieces[p].block_hashes,
                hash_blocks(copied[p].data(), static_cast<int64_t>(copied[p].size()) * 8));
    }
  }
}

TEST(PieceCopy, ReadsABoxOfATensor) {
  const std::vector<TensorInfo> tensors = {{"d", {4, 5}, DType::Float64}};
  const CountingSource source(tensors);
  std::vector<Piece> pieces = {
      {"d", kStateParameter, {{1, 2}, {2, 3}}, DType::Float64, kStateFile, "d", {}}};
  std::vector<double> copied;

  copy_pieces(source, nullptr, pieces, {}, [&](Piece&, int64_t, int64_t count, const void* data) {
    const auto* values = static_cast<const double*>(data);
    copied.assign(values, values + count);
  });

  EXPECT_EQ(copied, (std::vector<double>{7, 8, 9, 12, 13, 14}));
}

TEST(PieceCopy, EndsWithTheFirstFailureOfAnyThread) {
  std::vector<TensorInfo> tensors = {{"bad", {5}, DType::Float64}};
  for (int i = 0; i < 40; ++i) tensors.push_back({"t" + std::to_string(i), {5}, DType::Float64});
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const CountingSource source(tensors);
  for (const int threads : {1, 4}) {
    std::vector<Piece> pieces = pieces_of(tensors);
    EXPECT_THROW(copy_pieces(source, nullptr, pieces, {.threads = threads},
                             [](Piece&, int64_t, int64_t, const void*) {}),
                 WeightsError);
    EXPECT_THROW(
        copy_pieces(source, nullptr, pieces, {.threads = threads},
                    [](Piece&, int64_t, int64_t, const void*) { throw StorageError("disk"); }),
        Error);
  }
}

}  // namespace
}  // namespace zea::test_piece_copy
