// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/held_boxes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>

#include "core/extent.hpp"
#include "io/model_source.hpp"

namespace zea::detail::test_held_boxes {
namespace {

constexpr int64_t kWidth = 1000;

/// Element (row, column) of a matrix is its position, and the sign distinguishes the two boxes.
void write_places(const HeldBox& box, void* target) {
  auto* values = static_cast<double*>(target);
  for (int64_t i = 0; i < box.extent.elements(); ++i) {
    const int64_t row = box.extent.offset[0] + i / box.extent.length[1];
    const int64_t column = box.extent.offset[1] + i % box.extent.length[1];
    values[i] = static_cast<double>(row * kWidth + column) * (box.param == 0 ? 1 : -1);
  }
}

/// Two boxes of 60 and 20 MiB with room before, between and after them.
const FlatRange kRange{100, 100 + 10'500'000};
const std::vector<HeldBox> kBoxes = {{0, {{5, 10}, {8000, 983}}, 150},
                                     {1, {{0, 0}, {2600, kWidth}}, 150 + 8000 * 983 + 7}};

void expect_box(const at::Tensor& flat, const HeldBox& box) {
  at::Tensor expected = at::empty({box.extent.elements()}, at::kDouble);
  write_places(box, expected.data_ptr());
  EXPECT_TRUE(at::equal(flat.narrow(0, box.flat_begin - kRange.begin, expected.numel()), expected));
}

TEST(HeldBoxes, AreFilledByThreadsAndTheRestIsZero) {
  const at::Tensor flat = at::full({kRange.end - kRange.begin}, 7.5, at::kDouble);
  std::latch two(2);
  std::atomic<int64_t> parts = 0;
  fill_boxes(flat, kRange, kBoxes, 1, [&](const HeldBox& box, void* target) {
    if (parts++ < 2) two.arrive_and_wait();  // for ever, were there only one thread
    write_places(box, target);
  });
  EXPECT_GT(parts, 2);
  at::Tensor rest = flat.clone();
  for (const HeldBox& box : kBoxes) {
    expect_box(flat, box);
    rest.narrow(0, box.flat_begin - kRange.begin, box.extent.elements()).zero_();
  }
  EXPECT_EQ(rest.count_nonzero().item<int64_t>(), 0);
}

TEST(HeldBoxes, AreFilledByAThreadForEachCore) {
  constexpr int kCores = 4;
  const at::Tensor flat = at::empty({kRange.end - kRange.begin}, at::kDouble);
  std::latch all(kCores);
  std::atomic<int64_t> parts = 0;
  fill_boxes(flat, kRange, kBoxes, kCores, [&](const HeldBox& box, void* target) {
    if (parts++ < kCores) all.arrive_and_wait();  // for ever, were there fewer threads
    write_places(box, target);
  });
  for (const HeldBox& box : kBoxes) expect_box(flat, box);
}

/// Parts of a matrix, which begin and end within rows and within pairs of elements.
TEST(HeldBoxes, OfInitialWeightsHaveTheSameValuesHoweverManyThreadsDrawThem) {
  const Shape shape{45'000, 131};
  const std::string name = "model.embed_tokens.weight";
  const auto weights = make_initial_weights(
      R"({"model_type": "llama", "hidden_size": 131, "intermediate_size": 8, "vocab_size": 45000,
          "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 8,
          "max_position_embeddings": 8, "hidden_act": "silu"})",
      7);
  const at::Tensor whole_matrix = at::empty({num_elements(shape)}, at::kFloat);
  weights->read(name, shape, whole(shape), DType::Float32, whole_matrix.data_ptr());

  constexpr int64_t kBegin = 1000, kEnd = 5'800'001;
  std::vector<HeldBox> boxes;
  int64_t flat_begin = kBegin;
  for (const Extent& box : boxes_of_range(shape, kBegin, kEnd)) {
    boxes.push_back({0, box, flat_begin});
    flat_begin += box.elements();
  }
  for (const int cores : {1, 3}) {
    const at::Tensor flat = at::empty({kEnd - kBegin}, at::kFloat);
    fill_boxes(flat, {kBegin, kEnd}, boxes, cores, [&](const HeldBox& box, void* target) {
      weights->read(name, shape, box.extent, DType::Float32, target);
    });
    EXPECT_TRUE(at::equal(flat, whole_matrix.narrow(0, kBegin, kEnd - kBegin))) << cores;
  }
}

TEST(HeldBoxes, TellWhatFails) {
  const at::Tensor flat = at::empty({kRange.end - kRange.begin}, at::kDouble);
  EXPECT_THROW(fill_boxes(flat, kRange, kBoxes, 1,
                          [](const HeldBox& box, void*) {
                            if (box.param == 1) throw std::runtime_error("damaged");
                          }),
               std::runtime_error);
}

}  // namespace
}  // namespace zea::detail::test_held_boxes
