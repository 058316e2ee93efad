// SPDX-License-Identifier: Apache-2.0
// Random damage to the files of a checkpoint, many times over in one process: each is noticed, and
// nothing ever crashes or hangs. ZEA_DAMAGES: how many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/shard_file.hpp"
#include "support/files.hpp"

namespace zea::test_checkpoint_damage {
namespace {

constexpr int kShards = 2;
constexpr const char* kTensor = "a.weight";
const Shape kShape{48, 501};

int num_damages() {
  const char* text = std::getenv("ZEA_DAMAGES");
  return text ? std::atoi(text) : 400;
}

class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() {
    std::filesystem::create_directory(directory_);
    Manifest manifest;
    manifest.run_id = "run-1";
    manifest.position.step = 200;
    manifest.deck = "[run]\n";
    manifest.config = "{}";
    manifest.world_size = kShards;
    manifest.tensors = {{kTensor, kShape, DType::Float32, true}};
    for (const char* state : {kStateParameter, "exp_avg", "exp_avg_sq"})
      for (int64_t i = 0; i < num_elements(kShape); ++i)
        // Zeros, too, as moments of rows that were never used: where a weak checksum is blind.
        values_[state].push_back(i % 5 < 2 ? 0.0f : static_cast<float>(random_() % 10007) * 0.25f);
    for (int shard = 0; shard < kShards; ++shard) write_shard(shard, manifest);
    write_text_durably(directory_ + "/" + kManifestFile, manifest_text(manifest));
    for (const ManifestFile& file : manifest.files) files_.push_back(file.name);
    files_.push_back(kManifestFile);
    for (const std::string& file : files_) bytes_[file] = read_bytes(path_of(file));
  }

  void write_shard(int shard, Manifest& manifest) {
    const int64_t rows = kShape[0] / kShards;
    const Extent box{{shard * rows, 0}, {rows, kShape[1]}};
    ShardWriter writer(directory_, shard_file_name(shard), manifest.run_id, 200);
    for (const auto& [state, values] : values_)
      writer.add(kTensor, state, kShape, box, DType::Float32,
                 values.data() + shard * rows * kShape[1]);
    for (Piece& piece : writer.finish()) manifest.pieces.push_back(std::move(piece));
    manifest.files.push_back(writer.file());
  }

  std::string path_of(const std::string& file) const { return directory_ + "/" + file; }

  /// Whether reading everything throws a WeightsError.
  bool is_noticed(const std::string& what) {
    try {
      const CheckpointSource source(directory_);
      for (const auto& [state, wanted] : values_) {
        std::vector<float> found(wanted.size());
        source.read_state(kTensor, state, kShape, whole(kShape), DType::Float32, found.data());
        EXPECT_TRUE(found == wanted) << what << ": silently wrong";
      }
      EXPECT_EQ(source.position().step, 200) << what;
      return false;
    } catch (const WeightsError& error) {
      EXPECT_TRUE(contains(error.what(), directory_)) << what << ": " << error.what();
      return true;
    }
  }

  /// Does `damage` to the bytes of `file`, looks, and undoes it.
  template <class Damage>
  void expect_noticed(const std::string& file, const std::string& what, Damage damage) {
    std::string bytes = bytes_[file];
    damage(bytes);
    if (bytes == bytes_[file]) return;
    write_bytes(path_of(file), bytes);
    EXPECT_TRUE(is_noticed(what)) << what << ": silent";
    write_bytes(path_of(file), bytes_[file]);
  }

  size_t below(size_t n) { return random_() % n; }

  TemporaryDirectory temporary_;
  std::string directory_ = temporary_ / "step-00000200";
  std::mt19937_64 random_{20261121};
  std::map<std::string, std::vector<float>> values_;
  std::vector<std::string> files_;
  std::map<std::string, std::string> bytes_;
};

TEST_F(CheckpointDamage, NoFlippedBitIsSilent) {
  for (int i = 0; i < num_damages(); ++i) {
    const std::string& file = files_[below(files_.size())];
    const size_t byte = below(bytes_[file].size()), bit = below(8);
    expect_noticed(file, file + " byte " + std::to_string(byte), [&](std::string& bytes) {
      bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
    });
  }
  EXPECT_FALSE(is_noticed("in the end"));
}

TEST_F(CheckpointDamage, NoErasedBytesAreSilent) {
  constexpr size_t kSector = 512, kBlock = 4096;
  for (int i = 0; i < num_damages() / 4; ++i) {
    const std::string& file = files_[below(files_.size())];
    const size_t size = bytes_[file].size();
    const std::string where = file + ", round " + std::to_string(i);
    expect_noticed(file, where + ": words", [&](std::string& bytes) {
      const size_t first = below(size - 1) & ~size_t{1};
      const bool is_zero = bytes[first] == 0 && bytes[first + 1] == 0;
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(first), 2, is_zero ? '\xff' : '\0');
    });
    expect_noticed(file, where + ": zeroed", [&](std::string& bytes) {
      const size_t first = below(size) / kSector * kSector;
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(first), std::min(kBlock, size - first),
                  '\0');
    });
    expect_noticed(file, where + ": swapped", [&](std::string& bytes) {
      const size_t blocks = size / kSector;
      if (blocks < 2) return;
      const auto a = bytes.begin() + static_cast<ptrdiff_t>(below(blocks) * kSector);
      const auto b = bytes.begin() + static_cast<ptrdiff_t>(below(blocks) * kSector);
      if (a != b) std::swap_ranges(a, a + kSector, b);
    });
    expect_noticed(file, where + ": cut", [&](std::string& bytes) { bytes.resize(below(size)); });
  }
  EXPECT_FALSE(is_noticed("in the end"));
}

TEST_F(CheckpointDamage, SwappedFilesAreNoticed) {
  for (const std::string& a : files_)
    for (const std::string& b : files_) {
      if (a == b) continue;
      expect_noticed(a, a + " is " + b, [&](std::string& bytes) { bytes = bytes_[b]; });
    }
}

}  // namespace
}  // namespace zea::test_checkpoint_damage
