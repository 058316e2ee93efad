// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <random>

#include <unistd.h>

#include <gtest/gtest.h>

#include "core/extent.hpp"
#include "files/durable_file.hpp"
#include "io/shard_file.hpp"
#include "support/files.hpp"

namespace zea::test_checkpoint_source {
namespace {

struct Tensor {
  std::string name;
  Shape shape;
  bool trained;
  std::map<std::string, std::vector<float>> states;
};

std::vector<float> cut_out(const std::vector<float>& all, const Shape& shape, const Extent& box) {
  std::vector<float> part(static_cast<size_t>(box.elements()));
  for (const CopyRun& run : copy_runs(box, whole(shape), box))
    std::copy_n(all.begin() + run.source_element, run.elements, part.begin() + run.target_element);
  return part;
}

/// A checkpoint of random tensors, each cut at random places (after a cut of a dim, as under tensor
/// parallelism).
class Checkpoint : public ::testing::Test {
 protected:
  static constexpr int kShards = 3;

  void SetUp() override {
    directory_ = temporary_ / "step-00000200";
    std::filesystem::create_directory(directory_);
    add_tensor("matrix", {37, 23}, true);
    add_tensor("vector", {1001}, true);
    add_tensor("conv", {5, 3, 4, 2}, false);
    add_tensor("scalar", {}, false);
    write("run-1", 200);
  }

  /// Writes it again under other names or with other tensors.
  void rewrite(const std::string& run_id, int64_t step) {
    for (int k = 0; k < kShards; ++k) std::filesystem::remove(shard_path(k));
    write(run_id, step);
  }

  void add_tensor(const std::string& name, const Shape& shape, bool trained) {
    Tensor tensor{name, shape, trained, {}};
    std::vector<const char*> states{kStateParameter};
    if (trained) states.insert(states.end(), {"exp_avg", "exp_avg_sq"});
    for (const char* state : states) {
      std::vector<float>& values = tensor.states[state];
      for (int64_t i = 0; i < num_elements(shape); ++i)
        values.push_back(std::uniform_real_distribution<float>(-1, 1)(random_));
    }
    tensors_.push_back(std::move(tensor));
  }

  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }

  /// Boxes that cover `shape`: halves of its last dim, each cut into flat ranges.
  std::vector<Extent> random_cuts(const Shape& shape) {
    std::vector<Extent> halves{whole(shape)};
    if (!shape.empty() && shape.back() > 1) {
      const int64_t at = 1 + below(shape.back() - 1);
      halves.push_back(whole(shape));
      halves[0].length.back() = at;
      halves[1].offset.back() = at;
      halves[1].length.back() = shape.back() - at;
    }
    std::vector<Extent> boxes;
    for (const Extent& half : halves) {
      std::vector<int64_t> ends{0, half.elements()};
      for (int i = 1; i < kShards; ++i) ends.push_back(below(half.elements() + 1));
      std::sort(ends.begin(), ends.end());
      for (size_t i = 1; i < ends.size(); ++i)
        for (Extent box : boxes_of_range(half.length, ends[i - 1], ends[i])) {
          for (size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += half.offset[d];
          boxes.push_back(box);
        }
    }
    return boxes;
  }

  void write(const std::string& run_id, int64_t step) {
    manifest_ = Manifest{};
    manifest_.run_id = run_id;
    manifest_.position.step = step;
    manifest_.world_size = kShards;
    manifest_.config = "{}";
    std::vector<ShardWriter> writers;
    for (int k = 0; k < kShards; ++k) writers.emplace_back(directory_, shard(k), run_id, step);
    for (const Tensor& tensor : tensors_) {
      manifest_.tensors.push_back({tensor.name, tensor.shape, DType::Float32, tensor.trained});
      for (const auto& [state, values] : tensor.states)
        for (const Extent& box : random_cuts(tensor.shape)) {
          if (has_hole_ && tensor.name == "matrix" && box.offset == Shape{0, 0}) continue;
          writers[static_cast<size_t>(below(kShards))].add(
              tensor.name, state, tensor.shape, box, DType::Float32,
              cut_out(values, tensor.shape, box).data());
        }
    }
    for (ShardWriter& writer : writers) {
      for (Piece& piece : writer.finish()) manifest_.pieces.push_back(std::move(piece));
      manifest_.files.push_back(writer.file());
    }
    if (!has_hole_) check_coverage(manifest_);
    write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));
  }

  std::string shard(int number) const { return prefix_ + std::to_string(number) + ".h5"; }
  std::string shard_path(int number) const { return directory_ + "/" + shard(number); }

  /// Returns the error of reading all of it; empty: none.
  std::string error_of_all() const {
    return error_of([&] { CheckpointSource(directory_).check_all(); });
  }

  /// Writes it again as one of step 200 whose files have this name and carry this step.
  void rewrite_as(const std::string& prefix, int64_t step) {
    for (int k = 0; k < kShards; ++k) std::filesystem::remove(shard_path(k));
    prefix_ = prefix;
    write("run-1", step);
    manifest_.position.step = 200;
    write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));
  }

  std::mt19937 random_{12345};
  std::string prefix_ = "rank-0000";
  TemporaryDirectory temporary_;
  std::string directory_;
  std::vector<Tensor> tensors_;
  Manifest manifest_;
  bool has_hole_ = false;  ///< in what is written
};

TEST_F(Checkpoint, GivesBackEveryBox) {
  add_tensor("large", {1100, 1000}, false);  // pieces of more than one block
  rewrite("run-1", 200);
  const CheckpointSource source(directory_);
  ASSERT_EQ(source.tensors().size(), tensors_.size());
  for (const Tensor& tensor : tensors_)
    for (const auto& [state, values] : tensor.states)
      for (int trial = 0; trial < 20; ++trial) {
        Extent box = whole(tensor.shape);
        for (size_t d = 0; trial > 0 && d < box.length.size(); ++d) {
          box.offset[d] = below(tensor.shape[d]);
          box.length[d] = 1 + below(tensor.shape[d] - box.offset[d]);
        }
        std::vector<float> part(static_cast<size_t>(box.elements()));
        source.read_state(tensor.name, state, tensor.shape, box, DType::Float32, part.data());
        ASSERT_EQ(part, cut_out(values, tensor.shape, box)) << tensor.name << " " << state;
      }
  EXPECT_EQ(error_of_all(), "");
}

TEST_F(Checkpoint, Converts) {
  const Tensor& tensor = tensors_[0];
  std::vector<double> values(static_cast<size_t>(num_elements(tensor.shape)));

  CheckpointSource(directory_)
      .read(tensor.name, tensor.shape, whole(tensor.shape), DType::Float64, values.data());

  const std::vector<float>& expected = tensor.states.at(kStateParameter);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin()));
}

TEST_F(Checkpoint, RefusesWrongRequests) {
  const CheckpointSource source(directory_);
  std::vector<float> values(2000);
  auto error_of_read = [&](const std::string& name, const std::string& state, const Shape& shape) {
    return error_of([&] {
      source.read_state(name, state, shape, whole(shape), DType::Float32, values.data());
    });
  };

  EXPECT_TRUE(contains(error_of_read("matrx", kStateParameter, {37, 23}), "nearest: \"matrix\""));
  EXPECT_TRUE(contains(error_of_read("matrix", kStateParameter, {23, 37}),
                       "(37, 23); the model wants (23, 37)"));
  EXPECT_TRUE(contains(error_of_read("conv", "exp_avg", {5, 3, 4, 2}), "has no exp_avg"));
}

TEST_F(Checkpoint, NoFlippedBitIsSilent) {
  // At a stride, in data, in structures of HDF5, and in bytes that hold nothing.
  for (int k = 0; k < kShards; ++k) {
    const std::string bytes = read_bytes(shard_path(k));
    for (size_t byte = 0; byte < bytes.size(); byte += bytes.size() / 40) {
      flip_bit(shard_path(k), byte, static_cast<int>(byte % 8));
      const std::string message = error_of_all();
      EXPECT_TRUE(contains(message, shard(k))) << byte << ": " << message;
      write_bytes(shard_path(k), bytes);
    }
  }
  EXPECT_EQ(error_of_all(), "");
}

TEST_F(Checkpoint, NoFlippedBitOfAFileWithoutPiecesIsSilent) {
  ShardWriter writer(directory_, shard(kShards), "run-1", 200);
  writer.finish();
  manifest_.files.push_back(writer.file());
  write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));
  EXPECT_EQ(error_of_all(), "");
  const std::string path = shard_path(kShards);
  for (size_t byte = 0; byte < std::filesystem::file_size(path); byte += 7) {
    flip_bit(path, byte, static_cast<int>(byte % 8));
    EXPECT_TRUE(contains(error_of_all(), shard(kShards))) << byte;
    flip_bit(path, byte, static_cast<int>(byte % 8));
  }
}

TEST_F(Checkpoint, NoticesAFileThatGrew) {
  write_bytes(shard_path(1), read_bytes(shard_path(1)) + '\0');

  const std::string message = error_of_all();

  EXPECT_TRUE(contains(message, shard(1) + ": what it holds beside tensors")) << message;
}

TEST_F(Checkpoint, RefusesAFileWithoutItsHash) {
  manifest_.files[0].rest_hash.clear();
  write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));

  EXPECT_TRUE(contains(error_of_all(), shard(0) + ": what it holds beside tensors"));
}

TEST_F(Checkpoint, NoDamagedDataIsSilent) {
  for (const Piece& piece : manifest_.pieces) {
    if (piece.extent.empty()) continue;
    const std::string path = directory_ + "/" + piece.file;
    const auto offset = static_cast<size_t>(H5File::open(path).data_offset(piece.dataset));
    flip_bit(path, offset + static_cast<size_t>(piece.extent.elements()) * 2, 5);
    const std::string message = error_of_all();
    EXPECT_TRUE(contains(message, piece.file) && contains(message, "\"" + piece.tensor + "\""))
        << message;
    flip_bit(path, offset + static_cast<size_t>(piece.extent.elements()) * 2, 5);
  }
  EXPECT_EQ(error_of_all(), "");
}

TEST_F(Checkpoint, RefusesZeroedAndSwappedBlocks) {
  add_tensor("large", {1100, 1000}, false);
  rewrite("run-1", 200);
  const std::string bytes = read_bytes(shard_path(1));
  std::string zeroed = bytes;
  std::fill_n(zeroed.begin() + static_cast<int64_t>(bytes.size() / 2), 4096, '\0');
  write_bytes(shard_path(1), zeroed);
  EXPECT_TRUE(contains(error_of_all(), shard(1)));

  std::string swapped = bytes;
  const auto middle = swapped.begin() + static_cast<int64_t>(bytes.size() / 2);
  std::swap_ranges(middle, middle + 4096, middle + 4096);
  write_bytes(shard_path(1), swapped);
  EXPECT_TRUE(contains(error_of_all(), shard(1)));
}

TEST_F(Checkpoint, RefusesMissingExtraAndTruncatedFiles) {
  auto error_of_open = [&] { return error_of([&] { CheckpointSource source(directory_); }); };
  std::filesystem::copy_file(shard_path(0), shard_path(9));
  EXPECT_TRUE(contains(error_of_open(), shard(9)));
  std::filesystem::remove(shard_path(9));

  std::filesystem::resize_file(shard_path(2), std::filesystem::file_size(shard_path(2)) - 1);
  EXPECT_TRUE(contains(error_of_all(), shard(2)));
  write_bytes(shard_path(2), "");
  EXPECT_TRUE(contains(error_of_all(), shard(2)));
  std::filesystem::remove(shard_path(2));
  EXPECT_TRUE(contains(error_of_open(), shard(2)));
}

TEST_F(Checkpoint, RefusesSwappedShards) {
  std::filesystem::rename(shard_path(0), shard_path(7));
  std::filesystem::rename(shard_path(1), shard_path(0));
  std::filesystem::rename(shard_path(7), shard_path(1));

  EXPECT_TRUE(contains(error_of_all(), "files of different checkpoints are mixed"));
}

TEST_F(Checkpoint, RefusesAShardOfAnotherStepOrRun) {
  const std::string old_shard = read_bytes(shard_path(1));
  for (const auto& [run, step] : {std::pair<std::string, int64_t>{"run-1", 300}, {"run-2", 200}}) {
    rewrite(run, step);
    ASSERT_EQ(error_of_all(), "");
    write_bytes(shard_path(1), old_shard);
    EXPECT_TRUE(contains(error_of_all(), shard(1) + ": this shard's ")) << error_of_all();
  }
}

TEST_F(Checkpoint, ShardsOfFrozenValuesAreOfEveryStepAndOthersOfOne) {
  rewrite_as("frozen-0000", kEveryStep);
  EXPECT_EQ(error_of_all(), "");
  std::filesystem::copy_file(shard_path(0), shard_path(9));
  EXPECT_TRUE(contains(error_of_all(), shard(9) + ": the manifest does not name this shard"));
  std::filesystem::remove(shard_path(9));

  rewrite_as("frozen-0000", 200);
  EXPECT_TRUE(contains(error_of_all(),
                       "this shard's step is \"200\"; the manifest beside it wants "
                       "\"-1\""));
  rewrite_as("rank-0000", kEveryStep);
  EXPECT_TRUE(contains(error_of_all(),
                       "this shard's step is \"-1\"; the manifest beside it wants "
                       "\"200\""));
}

TEST_F(Checkpoint, RefusesSymbolicLinks) {
  std::filesystem::rename(shard_path(1), temporary_ / "elsewhere.h5");
  ASSERT_EQ(::symlink((temporary_ / "elsewhere.h5").c_str(), shard_path(1).c_str()), 0);

  EXPECT_TRUE(contains(error_of_all(), shard(1) + ": not a regular file"));
}

TEST_F(Checkpoint, RefusesAPieceOfAnotherShape) {
  Piece& piece =
      *std::find_if(manifest_.pieces.begin(), manifest_.pieces.end(), [](const Piece& p) {
        return p.state == kStateParameter && p.extent.elements() > 1 && p.tensor == "vector";
      });
  piece.extent.length[0] -= 1;
  write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));

  std::vector<float> values(1001);
  const std::string message = error_of([&] {
    CheckpointSource(directory_)
        .read("vector", {1001}, piece.extent, DType::Float32, values.data());
  });

  EXPECT_TRUE(contains(message, "the manifest says")) << message;
}

TEST_F(Checkpoint, RefusesAHoleBetweenPieces) {
  has_hole_ = true;
  rewrite("run-1", 200);

  std::vector<float> values(37 * 23);
  const std::string message = error_of([&] {
    CheckpointSource(directory_)
        .read("matrix", {37, 23}, whole({37, 23}), DType::Float32, values.data());
  });

  EXPECT_TRUE(contains(message, "of 851 elements asked for")) << message;
  EXPECT_TRUE(contains(error_of_all(), "exactly once"));
}

TEST_F(Checkpoint, NamesWhatIsNotFinite) {
  std::vector<float>& values = tensors_[0].states[kStateParameter];
  values[24] = NAN;
  rewrite("run-1", 200);

  std::vector<float> read(values.size());
  const std::string message = error_of([&] {
    CheckpointSource(directory_)
        .read("matrix", {37, 23}, whole({37, 23}), DType::Float32, read.data());
  });

  EXPECT_TRUE(contains(message, "\"matrix\" is nan at index (1, 1)")) << message;
}

TEST_F(Checkpoint, NoFlippedBitOfItsViewIsSilent) {
  complete_checkpoint(directory_, manifest_);
  EXPECT_EQ(error_of_all(), "");
  const std::string view = directory_ + "/model.h5", bytes = read_bytes(view);
  for (size_t byte = 0; byte < bytes.size(); byte += bytes.size() / 60) {
    flip_bit(view, byte, static_cast<int>(byte % 8));
    EXPECT_TRUE(contains(error_of_all(), "model.h5: has another hash")) << byte;
    write_bytes(view, bytes);
  }
  write_bytes(view, bytes + '\0');
  EXPECT_TRUE(contains(error_of_all(), "model.h5: has another hash"));
  std::filesystem::remove(view);
  EXPECT_TRUE(contains(error_of_all(), "model.h5: cannot be checked"));

  // Tensors do not come from it.
  std::vector<float> values(1001);
  CheckpointSource(directory_).read("vector", {1001}, whole({1001}), DType::Float32, values.data());
  EXPECT_EQ(values, tensors_[1].states.at(kStateParameter));
}

TEST_F(Checkpoint, ReadsOneWhoseViewHasNoHash) {
  complete_checkpoint(directory_, manifest_);
  write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest_));
  ASSERT_FALSE(contains(read_bytes(directory_ + "/" + kManifestFile), "view_hash"));
  flip_bit(directory_ + "/model.h5", 100);

  EXPECT_EQ(error_of_all(), "");
}

TEST_F(Checkpoint, WritesAVirtualModel) {
  complete_checkpoint(directory_, manifest_);

  // zea itself refuses virtual data: h5py reads it in tests/reference.
  EXPECT_TRUE(contains(error_of([&] { H5File::open(directory_ + "/model.h5").info("matrix"); }),
                       "virtual"));
}

}  // namespace
}  // namespace zea::test_checkpoint_source
