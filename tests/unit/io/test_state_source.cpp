// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "io/open_source.hpp"
#include "io/weights_file.hpp"
#include "support/files.hpp"
#include "zea/copy.hpp"

namespace zea::test_state_source {
namespace {

/// A weights file with the state of a run: "a" was trained, "b" was not.
class StateFileTest : public ::testing::Test {
 protected:
  void write(const std::function<void(Manifest&)>& change = {}) {
    WeightsWriter writer(path_, "{\"model_type\": \"x\"}");
    Manifest manifest;
    manifest.run_id = "run-1";
    manifest.position = {.step = 7, .optimizer_step = 6, .samples = 50, .tokens = 900};
    manifest.deck = "[run]\n";
    manifest.config = "{\"model_type\": \"x\"}";
    manifest.world_size = 1;
    manifest.files = {{kStateFile, ""}};
    manifest.tensors = {{"a", {2, 3}, DType::Float32, true}, {"b", {4}, DType::Float32, false}};
    add(writer, manifest, {"a", {2, 3}, DType::Float32}, kStateParameter, 0);
    add(writer, manifest, {"a", {2, 3}, DType::Float32}, "exp_avg", 10);
    add(writer, manifest, {"a", {2, 3}, DType::Float64}, "exp_avg_sq", 20);
    add(writer, manifest, {"b", {4}, DType::Float32}, kStateParameter, 30);
    writer.add_companion("tokenizer.json", "{}");
    if (change) change(manifest);
    // As add_state() does, except that it refuses faults.
    const std::string text = manifest_text(manifest);
    writer.add({kStateManifest, {static_cast<int64_t>(text.size())}, DType::UInt8});
    writer.write(kStateManifest, 0, static_cast<int64_t>(text.size()), text.data());
    writer.finish();
  }

  static void add(WeightsWriter& writer, Manifest& manifest, const TensorInfo& tensor,
                  const std::string& state, int first) {
    Piece piece = make_whole_piece(tensor, state, kStateFile, state_dataset(tensor.name, state));
    std::vector<double> values(static_cast<size_t>(num_elements(tensor.shape)));
    std::iota(values.begin(), values.end(), first);
    std::vector<char> data(values.size() * element_bytes(tensor.dtype));
    convert_elements(DType::Float64, values.data(), tensor.dtype, data.data(),
                     static_cast<int64_t>(values.size()));
    writer.add({piece.dataset, tensor.shape, tensor.dtype});
    writer.write(piece.dataset, 0, piece.extent.elements(), data.data());
    hash_part(piece, 0, piece.extent.elements(), data.data());
    manifest.pieces.push_back(piece);
  }

  std::string error_of_open() const {
    return error_of([&] { open_state(path_); });
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "w.h5";
};

TEST_F(StateFileTest, GivesBackStateAndPosition) {
  write();
  const auto source = open_state(path_);

  EXPECT_TRUE(has_state(path_));
  EXPECT_EQ(source->run_id(), "run-1");
  EXPECT_EQ(source->position().samples, 50);
  EXPECT_EQ(source->deck(), "[run]\n");
  EXPECT_EQ(source->states("a"), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(source->state_info("a", "exp_avg_sq").dtype, DType::Float64);
  EXPECT_TRUE(source->states("b").empty());
  EXPECT_EQ(source->companion("tokenizer.json"), "{}");
  std::vector<float> values(2);
  source->read_state("a", "exp_avg_sq", {2, 3}, {{1, 1}, {1, 2}}, DType::Float32, values.data());
  EXPECT_EQ(values, (std::vector<float>{24, 25}));
  source->check_all();
  EXPECT_TRUE(contains(error_of([&] {
                         source->read_state("b", "exp_avg", {4}, whole({4}), DType::Float32,
                                            values.data());
                       }),
                       "tensor \"b\" has no exp_avg"));
}

TEST_F(StateFileTest, IsAWeightsFileToOthers) {
  write();
  for (const auto& source : {open_weights_file(path_), open_weights(path_)}) {
    ASSERT_EQ(source->tensors().size(), 2u);
    EXPECT_EQ(source->tensors()[0].name, "a");
    std::vector<float> values(4);
    source->read("b", {4}, whole({4}), DType::Float32, values.data());
    EXPECT_EQ(values, (std::vector<float>{30, 31, 32, 33}));
    EXPECT_EQ(source->companions(), std::vector<std::string>{"tokenizer.json"});
  }
}

TEST_F(StateFileTest, FindsDamageAnywhereInTheData) {
  write();
  const std::string good = read_bytes(path_);
  std::vector<std::string> datasets = {"a", "b", state_dataset("a", "exp_avg"),
                                       state_dataset("a", "exp_avg_sq")};
  for (const std::string& dataset : datasets) {
    write_bytes(path_, good);
    flip_bit(path_, static_cast<uint64_t>(H5File::open(path_).data_offset(dataset)) + 3);
    EXPECT_TRUE(contains(error_of([&] { open_state(path_)->check_all(); }), "damaged")) << dataset;
  }
  write_bytes(path_, good);
  flip_bit(path_, static_cast<uint64_t>(H5File::open(path_).data_offset(kStateManifest)) + 200);
  EXPECT_TRUE(contains(error_of_open(), "manifest is damaged"));
}

TEST_F(StateFileTest, RefusesStateThatIsNotOfItsWeights) {
  const struct {
    std::function<void(Manifest&)> change;
    const char* error;
  } cases[] = {
      {[](Manifest& m) { m.tensors[1].name = m.pieces[3].tensor = "c"; }, "has no tensor \"c\""},
      {[](Manifest& m) { m.tensors.pop_back(), m.pieces.pop_back(); },
       "holds 2 tensors, and state of 1"},
      {[](Manifest& m) { m.pieces.erase(m.pieces.begin() + 1); },
       "\"a\" (exp_avg) do not cover it exactly once"},
      {[](Manifest& m) {
         m.tensors[0].shape = {3, 2};
       },
       "lies outside tensor \"a\""},
      {[](Manifest& m) {
         m.tensors[1].shape = {2, 2};
         m.pieces[3].extent = whole({2, 2});
       },
       "tensor \"b\" has shape (4); the model wants (2, 2)"},
  };
  for (const auto& [change, error] : cases) {
    write(change);
    const std::string message = error_of_open();
    EXPECT_TRUE(contains(message, error)) << message;
  }
}

TEST_F(StateFileTest, SaysWhatPlainWeightsLack) {
  WeightsWriter writer(path_, "{}");
  writer.finish();

  EXPECT_FALSE(has_state(path_));
  EXPECT_TRUE(contains(error_of_open(), "zea-consolidate --optimizer"));
  EXPECT_TRUE(contains(error_of([&] { open_state(directory_ / "none"); }), "none"));
}

TEST_F(StateFileTest, IsReadByManyThreads) {
  write();
  const auto source = open_state(path_);
  std::vector<int> wrong(8, 0);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < wrong.size(); ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          std::vector<float> values(1);
          const int64_t at = (i + static_cast<int64_t>(t)) % 6;
          source->read_state("a", i % 2 ? "exp_avg" : "exp_avg_sq", {2, 3},
                             {{at / 3, at % 3}, {1, 1}}, DType::Float32, values.data());
          wrong[t] += values[0] != static_cast<float>((i % 2 ? 10 : 20) + at);
        }
      });
  }
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

}  // namespace
}  // namespace zea::test_state_source
